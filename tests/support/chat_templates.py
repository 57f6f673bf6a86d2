"""Chat templates in our own words, each writing calls in the way of one published family."""

import json
import shutil
from pathlib import Path

from runtime.model.sources import DEFAULT_MODEL

_TURNS = """\
{%- for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
%CALL%
{%- endfor %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

HERMES = _TURNS.replace(
    "%CALL%",
    '<tool_call>\n{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>',
)
QWEN3_CODER = _TURNS.replace(
    "%CALL%",
    "<tool_call>\n<function={{ call.function.name }}>\n"
    "{%- for key, value in call.function.arguments.items() %}"
    "<parameter={{ key }}>\n{{ value }}\n</parameter>\n{%- endfor %}"
    "</function>\n</tool_call>",
)
GLM = _TURNS.replace(
    "%CALL%",
    "<tool_call>{{ call.function.name }}\n"
    "{%- for key, value in call.function.arguments.items() %}"
    "<arg_key>{{ key }}</arg_key>\n<arg_value>{{ value }}</arg_value>\n{%- endfor %}</tool_call>",
)
MISTRAL = _TURNS.replace(
    "%CALL%", '[TOOL_CALLS] [{"name": "{{ call.function.name }}", "arguments": {} }]'
)
MISTRAL_V11 = _TURNS.replace("%CALL%", "[TOOL_CALLS]{{ call.function.name }}[ARGS]{ }")
LLAMA = _TURNS.replace(
    "%CALL%",
    '{%- if call.builtin %}<|python_tag|>{{ call.function.name }}.call(){%- else %}{"name": '
    '"{{ call.function.name }}", "parameters": {} }{%- endif %}',
)
HARMONY = _TURNS.replace(
    "%CALL%", "<|start|>assistant to={{ call.function.name }}<|channel|>commentary<|call|>"
)
DEEPSEEK = _TURNS.replace(
    "%CALL%",
    "<{bar}tool{block}call{block}begin{bar}>{{{{ call.function.name }}}}"
    "<{bar}tool{block}sep{bar}>{{}}".format(
        bar="\N{FULLWIDTH VERTICAL LINE}", block="\N{LOWER ONE EIGHTH BLOCK}"
    ),
)
WITHOUT_CALLS = _TURNS.replace("%CALL%", "")


def folder_with_template(folder: Path, template: str) -> Path:
    """The default model in a new folder, with a chat template."""
    shutil.copytree(DEFAULT_MODEL, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"chat_template": template}))
    return folder
