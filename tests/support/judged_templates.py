"""Chat templates in our own words that write what a renderer of ours does, and spoiled ones.

They are put together from what the renderers write: a template is Jinja around it.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from runtime.model.sources import DEFAULT_MODEL
from tests.support.byte_tokenizer import SPECIAL_TOKENS, files
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.chat_generic import chat_format_described
from tools_api.tools import FunctionTool

_MARK = FunctionTool(name="qmark", parameters={"type": "object", "properties": {}})


def _around_tools(name: str, listed: str) -> tuple[str, str]:
    """What a renderer writes before and behind the list of tools, without instructions."""
    chat_format = chat_format_described(name, frozenset(SPECIAL_TOKENS).__contains__)
    segments: Sequence[Segment] = chat_format.header("Qsystem", [_MARK], TemplateOptions())
    text = "".join(segment.text for segment in segments)
    before, found, behind = text.partition(listed)
    assert found
    return before, behind.partition("<|im_end|>")[0]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_TURNS = """\
{%- set ns = namespace(last=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- set first = 1 if messages[0].role == 'system' else 0 -%}
%HEADER%
{%- for message in messages -%}
  {%- if loop.index0 < first -%}{%- continue -%}{%- endif -%}
  {%- if message.role == 'tool' -%}
%OUTPUT%
  {%- elif message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\\n' -}}
%THOUGHT%
%CALLS%
    {{- '<|im_end|>\\n' -}}
  {%- else -%}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
%PROMPT%
{%- endif -%}
"""


def _turns(**parts: str) -> str:
    text = _TURNS
    for name in ("HEADER", "OUTPUT", "THOUGHT", "CALLS", "PROMPT"):
        text = text.replace(f"%{name}%", parts.get(name, ""))
    return text


_BEFORE, _BEHIND = _around_tools("hermes", json.dumps({"type": "function", "function": {
    "name": "qmark", "parameters": {"type": "object", "properties": {}}}}))  # fmt: skip
_HERMES_HEADER = f"""\
{{%- if first or tools -%}}
  {{{{- '<|im_start|>system\\n' -}}}}
  {{%- if first -%}}{{{{- messages[0].content -}}}}{{%- endif -%}}
  {{%- if tools -%}}
    {{%- if first -%}}{{{{- '\\n\\n' -}}}}{{%- endif -%}}
    {{{{- {_quoted(_BEFORE.partition("Qsystem")[2].strip())} -}}}}
    {{%- for tool in tools -%}}{{{{- '\\n' ~ (tool | tojson) -}}}}{{%- endfor -%}}
    {{{{- {_quoted(_BEHIND)} -}}}}
  {{%- endif -%}}
  {{{{- '<|im_end|>\\n' -}}}}
{{%- endif -%}}
"""
_HERMES_CALLS = """\
    {{- message.content -}}
    {%- for call in message.tool_calls or [] -%}
      {{- '\\n' if message.content or not loop.first else '' -}}
      {{- '<tool_call>\\n{"name": ' ~ (call.function.name | tojson) ~ ', "arguments": ' -}}
      {{- (call.function.arguments | tojson) ~ '}\\n</tool_call>' -}}
    {%- endfor -%}
"""
_HERMES_OUTPUT = """\
    {%- if loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
"""
_QWEN3_THOUGHT = """\
    {%- if message.reasoning_content and loop.index0 > ns.last -%}
      {{- '<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n\\n' -}}
    {%- elif loop.last -%}
      {{- '<think>\\n\\n</think>\\n\\n' -}}
    {%- endif -%}
"""
_QWEN3_PROMPT = """\
  {%- if enable_thinking is defined and not enable_thinking -%}
    {{- '<think>\\n\\n</think>\\n\\n' -}}
  {%- endif -%}
"""
HERMES = _turns(HEADER=_HERMES_HEADER, OUTPUT=_HERMES_OUTPUT, CALLS=_HERMES_CALLS)
"""Written as ``hermes`` by a tokenizer without think tags."""
QWEN3 = _turns(
    HEADER=_HERMES_HEADER,
    OUTPUT=_HERMES_OUTPUT,
    THOUGHT=_QWEN3_THOUGHT,
    CALLS=_HERMES_CALLS,
    PROMPT=_QWEN3_PROMPT,
)
"""Its reasoning goes with the next user message, as published."""

_XML_BEFORE, _XML_BEHIND = _around_tools("qwen3-coder", "\n<function>\n<name>qmark</name>")
_XML_BEHIND = "\n</tools>" + _XML_BEHIND.partition("\n</tools>")[2]
_SAID_TO_ALL = "".join(
    segment.text
    for segment in chat_format_described(
        "qwen3-coder", frozenset(SPECIAL_TOKENS).__contains__
    ).header(None, [_MARK], TemplateOptions())
).partition("system\n")[2].partition("\n\n# Tools")[0]  # fmt: skip
_XML_HEADER = f"""\
{{%- macro rest(fields, known) -%}}
  {{%- for key, value in fields.items() if key not in known -%}}
    {{%- set shown = (value | tojson) if value is mapping or (value is sequence and value is not
        string) else (value | string) -%}}
    {{{{- '\\n<' ~ key ~ '>' ~ shown ~ '</' ~ key ~ '>' -}}}}
  {{%- endfor -%}}
{{%- endmacro -%}}
{{%- if first or tools -%}}
  {{{{- '<|im_start|>system\\n' ~ (messages[0].content if first else {_quoted(_SAID_TO_ALL)}) -}}}}
  {{%- if tools -%}}
    {{{{- {_quoted(_XML_BEFORE.partition("Qsystem")[2])} -}}}}
    {{%- for tool in tools -%}}
      {{%- set f = tool.function -%}}
      {{{{- '\\n<function>\\n<name>' ~ f.name ~ '</name>' -}}}}
      {{%- if f.description is defined -%}}
        {{{{- '\\n<description>' ~ (f.description | trim) ~ '</description>' -}}}}
      {{%- endif -%}}
      {{{{- '\\n<parameters>' -}}}}
      {{%- for key, fields in (f.parameters.properties or {{}}).items() -%}}
        {{{{- '\\n<parameter>\\n<name>' ~ key ~ '</name>' -}}}}
        {{%- if fields.type is defined -%}}
          {{{{- '\\n<type>' ~ fields.type ~ '</type>' -}}}}
        {{%- endif -%}}
        {{%- if fields.description is defined -%}}
          {{{{- '\\n<description>' ~ (fields.description | trim) ~ '</description>' -}}}}
        {{%- endif -%}}
        {{{{- rest(fields, ['name', 'type', 'description']) ~ '\\n</parameter>' -}}}}
      {{%- endfor -%}}
      {{{{- rest(f.parameters, ['type', 'properties']) -}}}}
      {{{{- '\\n</parameters>\\n</function>' -}}}}
    {{%- endfor -%}}
    {{{{- {_quoted(_XML_BEHIND)} -}}}}
  {{%- endif -%}}
  {{{{- '<|im_end|>\\n' -}}}}
{{%- endif -%}}
"""
_XML_CALLS = """\
    {%- if message.tool_calls -%}
      {{- (message.content | trim) ~ '\\n\\n' if message.content | trim else '' -}}
      {%- for call in message.tool_calls -%}
        {{- '\\n' if not loop.first else '' -}}
        {{- '<tool_call>\\n<function=' ~ call.function.name ~ '>\\n' -}}
        {%- for key, value in call.function.arguments.items() -%}
          {{- '<parameter=' ~ key ~ '>\\n' -}}
          {{- (value | tojson) if value is mapping or (value is sequence and value is not string)
              else (value | string) -}}
          {{- '\\n</parameter>\\n' -}}
        {%- endfor -%}
        {{- '</function>\\n</tool_call>' -}}
      {%- endfor -%}
    {%- else -%}
      {{- message.content -}}
    {%- endif -%}
"""
_XML_OUTPUT = """\
    {%- if loop.previtem.role != 'tool' -%}{{- '<|im_start|>user\\n' -}}{%- endif -%}
    {{- '<tool_response>\\n' ~ message.content ~ '\\n</tool_response>\\n' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
"""
QWEN3_CODER = _turns(HEADER=_XML_HEADER, OUTPUT=_XML_OUTPUT, CALLS=_XML_CALLS)

NEWLINE_IN_CALL = QWEN3_CODER.replace("'<tool_call>\\n<function='", "'<tool_call>\\n\\n<function='")
NEWLINE_IN_PROMPT_AND_TURNS = QWEN3_CODER.replace("assistant\\n'", "assistant\\n\\n'")
NEWLINE_AFTER_TURNS = QWEN3_CODER.replace("'<|im_end|>\\n'", "'<|im_end|>\\n\\n'")
COUNTS_ITS_TURNS = QWEN3_CODER.replace(
    "'<|im_start|>' ~ message.role", "'<|im_start|>of ' ~ (messages | length) ~ message.role"
)
"""What stands in front depends on what follows."""
DROPS_OUTPUTS = QWEN3_CODER.replace("'<tool_response>\\n' ~ message.content ~", "'<tool_response>\\n' ~")
DROPS_QUESTIONS = QWEN3_CODER.replace(
    "~ message.content ~ '<|im_end|>\\n'", "~ '<|im_end|>\\n'"
)
ASKS_FOR_THE_DATE = QWEN3_CODER.replace(
    "{{- '<|im_start|>system\\n' ~", "{{- '<|im_start|>system\\n' ~ strftime_now('%d %b %Y') ~ '\\n' ~"
)


def template_folder(
    folder: Path, template: str | None, *, specials: Sequence[str] = SPECIAL_TOKENS
) -> Path:
    """A small model with random weights whose tokenizer has a token for each byte.

    Args:
        template: of the folder; None: it has none.
    """
    from tests.support.random_folder import write_random_model

    write_random_model(folder)
    for name, text in files(specials).items():
        (folder / name).write_text(text, encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def default_model_with(folder: Path, template: str) -> Path:
    """The default model in a new folder, with a chat template."""
    shutil.copytree(DEFAULT_MODEL, folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder
