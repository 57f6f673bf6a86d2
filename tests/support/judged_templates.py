"""Chat templates in our own words that write what a renderer of ours does, and spoiled ones.

They are put together from what the renderers write: a template is Jinja around it.
"""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from runtime.model.sources import DEFAULT_MODEL
from tests.support.byte_tokenizer import SPECIAL_TOKENS
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
HERMES_CALLS = """\
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
HERMES = _turns(HEADER=_HERMES_HEADER, OUTPUT=_HERMES_OUTPUT, CALLS=HERMES_CALLS)
"""Written as ``hermes`` by a tokenizer without think tags."""
QWEN3 = _turns(
    HEADER=_HERMES_HEADER,
    OUTPUT=_HERMES_OUTPUT,
    THOUGHT=_QWEN3_THOUGHT,
    CALLS=HERMES_CALLS,
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
DROPS_OUTPUTS = QWEN3_CODER.replace(
    "'<tool_response>\\n' ~ message.content ~", "'<tool_response>\\n' ~"
)
DROPS_QUESTIONS = QWEN3_CODER.replace("~ message.content ~ '<|im_end|>\\n'", "~ '<|im_end|>\\n'")
ASKS_FOR_THE_DATE = QWEN3_CODER.replace(
    "{{- '<|im_start|>system\\n' ~",
    "{{- '<|im_start|>system\\n' ~ strftime_now('%d %b %Y') ~ '\\n' ~",
)
_BAR, _BLOCK = "\N{FULLWIDTH VERTICAL LINE}", "\N{LOWER ONE EIGHTH BLOCK}"


def _deepseek(template: str) -> str:
    """``{tool calls begin}`` and others as DeepSeek's special tokens."""
    return re.sub(
        r"\[\[([\w ]+)\]\]", lambda f: f"<{_BAR}{f[1].replace(' ', _BLOCK)}{_BAR}>", template
    )


_SYSTEM_FIRST = (
    "{{- bos_token }}{%- for m in messages if m.role == 'system' %}{{- m.content }}{%- endfor %}"
)
DEEPSEEK_V31 = _deepseek(
    _SYSTEM_FIRST + "{%- set asked = namespace(last=false) %}{%- for m in messages %}"
    "{%- if m.role == 'user' %}{{- '[[User]]' + m.content }}{%- set asked.last = true %}"
    "{%- elif m.role == 'tool' %}{%- set asked.last = false %}"
    "{{- '[[tool output begin]]' + m.content + '[[tool output end]]' }}"
    "{%- elif m.role == 'assistant' %}{{- '[[Assistant]]</think>' if asked.last }}"
    "{%- set asked.last = false %}{{- m.content }}"
    "{%- if m.tool_calls %}{{- '[[tool calls begin]]' }}"
    "{%- for c in m.tool_calls %}{{- '[[tool call begin]]' + c.function.name + '[[tool sep]]' + "
    "c.function.arguments + '[[tool call end]]' }}{%- endfor %}{{- '[[tool calls end]]' }}"
    "{%- endif %}{{- '[[end of sentence]]' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt and asked.last %}"
    "{{- '[[Assistant]]' + ('<think>' if thinking else '</think>') }}{%- endif %}"
)
"""As V3.1's: no tools, no reasoning of finished turns."""
DEEPSEEK_V3 = _deepseek(
    _SYSTEM_FIRST + "{%- set at = namespace(outputs=0) %}{%- for m in messages %}"
    "{%- if m.role == 'user' %}{{- '[[User]]' + m.content + '[[Assistant]]' }}"
    "{%- elif m.role == 'tool' %}{{- '\n' if at.outputs else '[[tool outputs begin]]' }}"
    "{%- set at.outputs = 1 %}{{- '[[tool output begin]]' + m.content + '[[tool output end]]' }}"
    "{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '[[tool outputs end]]' }}"
    "{%- set at.outputs = 0 %}{%- endif %}"
    "{%- elif m.role == 'assistant' %}{{- m.content }}{%- if m.tool_calls %}"
    "{{- '[[tool calls begin]]' }}{%- for c in m.tool_calls %}{{- '\n' if not loop.first }}"
    "{{- '[[tool call begin]]function[[tool sep]]' + c.function.name + '\n```json\n' + "
    "c.function.arguments + '\n```[[tool call end]]' }}{%- endfor %}{{- '[[tool calls end]]' }}"
    "{%- endif %}{{- '[[end of sentence]]' }}{%- endif %}{%- endfor %}"
)
"""As V3-0324's and R1-0528's, which their tokens tell apart."""
_KIMI = (
    "{%- macro start(m) %}{{- {'user': '<|im_user|>', 'assistant': '<|im_assistant|>'}"
    ".get(m.role, '<|im_system|>') + (m.name or m.role) + '<|im_middle|>' }}{%- endmacro %}"
    "{%- if tools %}{{- '<|im_system|>tool_declare<|im_middle|>' + "
    "tools | tojson(separators=(',', ':')) + '<|im_end|>' }}{%- endif %}"
    "{%- if messages[0].role != 'system' %}{{- '<|im_system|>system<|im_middle|>You are Kimi, "
    "an AI assistant created by Moonshot AI.<|im_end|>' }}{%- endif %}"
    "{%- for m in messages %}{{- start(m) }}{%- if m.role == 'assistant' %}%THINK%{%- endif %}"
    "{%- if m.role == 'tool' %}{{- '## Return of ' + m.tool_call_id + '\n' }}{%- endif %}"
    "{{- m.content }}{%- if m.tool_calls %}{{- '<|tool_calls_section_begin|>' }}"
    "{%- for c in m.tool_calls %}{{- '<|tool_call_begin|>' + c.id + "
    "'<|tool_call_argument_begin|>' + (c.function.arguments "
    "if c.function.arguments is string else c.function.arguments | tojson) + "
    "'<|tool_call_end|>' }}{%- endfor %}{{- '<|tool_calls_section_end|>' }}{%- endif %}"
    "{{- '<|im_end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_assistant|>assistant<|im_middle|>' }}"
    "%PROMPT%{%- endif %}"
)
_KIMI_THOUGHT = "{{- '<think>' + (m.reasoning_content or '') + '</think>' }}"
KIMI_K2 = _KIMI.replace("%THINK%", "").replace("%PROMPT%", "")
KIMI_K2_THINKING = _KIMI.replace("%THINK%", _KIMI_THOUGHT).replace("%PROMPT%", "")
KIMI_K25 = _KIMI.replace("%THINK%", _KIMI_THOUGHT).replace(
    "%PROMPT%", "{{- '<think>' if thinking else '<think></think>' }}"
)
_GEMMA4 = (
    "{%- set q = '<|\"|>' %}"
    "{%- macro val(v) %}{%- if v is string %}{{- q + v + q }}{%- elif v is boolean %}"
    "{{- v | tojson }}{%- elif v is mapping %}{{- '{' }}{%- for k, x in v | dictsort %}"
    "{{- ',' if not loop.first }}{{- k + ':' + val(x) }}{%- endfor %}{{- '}' }}"
    "{%- elif v is sequence %}{{- '[' }}{%- for x in v %}{{- ',' if not loop.first }}"
    "{{- val(x) }}{%- endfor %}{{- ']' }}{%- else %}{{- v }}{%- endif %}{%- endmacro %}"
    "{%- macro kind(s) %}{{- 'type:' + q + (s.type | upper) + q }}{%- endmacro %}"
    "{%- macro prop(s) %}{{- 'description:' + q + s.description + q + ',' if s.description }}"
    "{{- 'items:{' + kind(s['items']) + '},' if s.type == 'array' }}{{- kind(s) }}{%- endmacro %}"
    "{%- macro declared(f) %}{%- set p = f.parameters %}"
    "{{- 'declaration:' + f.name + '{description:' + q + f.description + q + ',parameters:{' }}"
    "{%- if p.properties %}{{- 'properties:{' }}{%- for k, s in p.properties | dictsort %}"
    "{{- ',' if not loop.first }}{{- k + ':{' + prop(s) + '}' }}{%- endfor %}{{- '},' }}"
    "{%- endif %}"
    "{{- 'required:' + val(p.required) + ',' if p.required }}{{- kind(p) + '}}' }}"
    "{%- endmacro %}"
    "{%- set system = messages[0].role == 'system' %}{{- bos_token }}"
    "{%- if system or tools or enable_thinking %}{{- '<|turn>system\n' }}"
    "{{- '<|think|>\n' if enable_thinking }}{{- messages[0].content | trim if system }}"
    "{%- for t in tools or [] %}{{- '<|tool>' + declared(t.function) + '<tool|>' }}{%- endfor %}"
    "{{- '<turn|>\n' }}{%- endif %}{%- set at = namespace(inside=false, names={}) %}"
    "{%- for m in messages[1 if system else 0:] %}{%- if m.role == 'tool' %}"
    "{{- '<|tool_response>response:' + m.name + '{value:' + q + m.content + q }}"
    "{{- '}<tool_response|>' }}{%- elif m.role == 'assistant' %}"
    "{{- '<|turn>model\n' if not at.inside }}{%THOUGHT%}{%- for c in m.tool_calls or [] %}"
    "{{- '<|tool_call>call:' + c.function.name + val(c.function.arguments) + '<tool_call|>' }}"
    "{%- endfor %}{%- set at.inside = m.tool_calls is defined %}{{- m.content | trim }}"
    "{{- '<turn|>\n' if not at.inside }}{%- else %}{{- '<turn|>\n' if at.inside }}"
    "{%- set at.inside = false %}{{- '<|turn>' + m.role + '\n' + m.content | trim + '<turn|>\n' }}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{%- if not at.inside %}"
    "{{- '<|turn>model\n' }}{%PROMPT%}{%- elif enable_thinking %}"
    "{{- '<|channel>thought\n' }}{%- endif %}{%- endif %}"
)
_GEMMA4_THOUGHT = (
    "{%- if m.reasoning_content and 'user' not in messages[loop.index:] | map(attribute='role') %}"
    "{{- '<|channel>thought\n' + m.reasoning_content + '\n<channel|>' }}{%- endif %}"
)
GEMMA4_E = _GEMMA4.replace("{%THOUGHT%}", _GEMMA4_THOUGHT).replace("{%PROMPT%}", "")
"""As Gemma 4's small models': reasoning of the last turn alone."""
GEMMA4 = _GEMMA4.replace("{%THOUGHT%}", _GEMMA4_THOUGHT).replace(
    "{%PROMPT%}", "{{- '<|channel>thought\n<channel|>' if not enable_thinking }}"
)
"""As the larger ones'."""
GEMMA4_OF_APRIL = GEMMA4.replace("{%- elif enable_thinking %}{{- '<|channel>thought\n' }}", "")
"""It opens no channel behind outputs."""
_MINIMAX_M3 = (
    "{%- set ns = ']<]minimax[>[' %}{%- set end = '[e~[\n' %}"
    "{%- macro val(v) %}{%- if v is mapping %}{%- for k, x in v.items() if x is not none %}"
    "{{- tag(k, x) }}{%- endfor %}{%- elif v is string %}{{- v }}{%- elif v is boolean %}"
    "{{- v | tojson }}{%- elif v is iterable %}{%- for x in v %}{{- tag('item', x) }}"
    "{%- endfor %}{%- elif v is not none %}{{- v }}{%- endif %}{%- endmacro %}"
    "{%- macro tag(k, x) %}{{- ns + '<' + k + '>' + val(x) + ns + '</' + k + '>' }}{%- endmacro %}"
    "{{- %OFF% if thinking_mode == 'disabled' else %ON% }}"
    "{%- set system = messages[0].role == 'system' %}"
    "{{- messages[0].content if system else %NOBODY% }}"
    "{%- if tools %}{{- %TOOLS% }}{%- for t in tools %}"
    "{{- '<tool>' + (t.function | tojson) + '</tool>\n' }}{%- endfor %}"
    "{{- %CALLS% }}{%- endif %}{{- end }}"
    "{%- for m in messages[1 if system else 0:] %}{%- if m.role == 'assistant' %}"
    "{{- ']~b]ai\n' }}{{- '<mm:think>' + m.reasoning_content if m.reasoning_content }}"
    "{{- '</mm:think>' + m.content }}{%- if m.tool_calls %}{{- ns + '<tool_call>\n' }}"
    "{%- for c in m.tool_calls %}{{- ns + '<invoke name=\"' + c.function.name + '\">' }}"
    "{{- val(c.function.arguments) + ns + '</invoke>\n' }}{%- endfor %}"
    "{{- ns + '</tool_call>' }}{%- endif %}{{- end }}{%- elif m.role == 'tool' %}"
    "{{- ']~b]tool' if loop.previtem.role != 'tool' }}"
    "{{- '\n<response>' + m.content + '</response>' }}"
    "{{- end if loop.last or loop.nextitem.role != 'tool' }}"
    "{%- elif m.role == 'user' %}{{- ']~b]user\n' + m.content + end }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- ']~b]ai\n' }}"
    "{{- '</mm:think>' if thinking_mode == 'disabled' }}{%- endif %}"
)


def minimax_m3(specials: Sequence[str]) -> str:
    """As MiniMax M3's for a tokenizer with these special tokens; it takes ``thinking_mode``."""
    chat = chat_format_described("minimax-m3", frozenset(specials).__contains__)

    def header(thinking: bool, *tools: FunctionTool) -> str:
        segments = chat.header(None, tools, TemplateOptions(thinking=thinking))
        return "".join(segment.text for segment in segments)

    nobody = "You are a helpful assistant."
    off, on = (header(thinking).split(nobody)[0] for thinking in (False, True))
    listed = header(False, _MARK).removeprefix(off + nobody).removesuffix("[e~[\n")
    tools, calls = re.split(r"<tool>.*</tool>\n", listed)
    said = {"OFF": off, "ON": on, "NOBODY": nobody, "TOOLS": tools, "CALLS": calls}
    return re.sub(r"%([A-Z]+)%", lambda found: json.dumps(said[found[1]]), _MINIMAX_M3)


def default_model_with(folder: Path, template: str) -> Path:
    """The default model in a new folder, with a chat template."""
    shutil.copytree(DEFAULT_MODEL, folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


HOSTILE = {
    "it loops for ever": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}",
    "it allocates 10 GB": "{{ 'x' * 10_000_000_000 }}",
    "it allocates step by step": "{% set ns = namespace(a='x') %}{% for i in range(40) %}"
    "{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "it raises": "{{ raise_exception('not\n today') }}",
    "it recurses": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "it names dunder attributes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "it looks for the system": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "it writes 100 MB": "{% for i in range(100_000) %}{{ 'x' * 1000 }}{% endfor %}",
    "it writes nothing": "",
    "it is no template": "{% if %}",
    "it is deep": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "it changes what it is given": "{{ messages.append(1) }}",
    "it reads a file": "{% include '/etc/passwd' %}",
}
"""By what is wrong with them."""
