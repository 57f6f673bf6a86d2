"""In which way a model's own chat template writes calls, told by signs in its text.

A template is code and is not run here. Each row below knows a published way of writing calls by
words that stand in every template of that kind and in no other. What this project writes itself
(``chat_families``) is among the rows, so that a template can be compared with the format that a
tokenizer chose.
"""

from dataclasses import dataclass

from tools_api.chat_format import CallSyntax, ChatFormat, JsonCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWriting:
    """One way of writing calls."""

    name: str
    shown: str
    """A call of that kind, shortened."""
    signs: tuple[str, ...]
    """The signs of a call, all of which are in the format's templates."""


_BAR = "\N{FULLWIDTH VERTICAL LINE}"
"""The bar in DeepSeek's special tokens."""
_SEPARATOR = f"{_BAR}tool\N{LOWER ONE EIGHTH BLOCK}sep{_BAR}"
_WRITINGS = (
    CallWriting(
        name="Qwen3-Coder",
        shown="<function=NAME><parameter=KEY>VALUE",
        signs=("<function=", "<parameter="),
    ),
    CallWriting(name="Functionary", shown="<function=NAME>{...}", signs=("<function=",)),
    CallWriting(
        name="GLM-4.5", shown="<arg_key>KEY</arg_key><arg_value>VALUE", signs=("<arg_key>",)
    ),
    CallWriting(
        name="MiniMax M3",
        shown=']<]minimax[>[<invoke name="NAME">]<]minimax[>[<KEY>VALUE',
        signs=("]<]minimax[>[",),
    ),
    CallWriting(name="MiniMax", shown='<invoke name="NAME">', signs=("<invoke name=",)),
    CallWriting(name="DeepSeek-V3.2", shown=f"<{_BAR}DSML{_BAR}...>", signs=(f"{_BAR}DSML{_BAR}",)),
    CallWriting(
        name="DeepSeek V3",
        shown=f"function<{_SEPARATOR}>NAME",
        signs=(_SEPARATOR, "```json"),
    ),
    CallWriting(name="DeepSeek V3.1", shown=f"NAME<{_SEPARATOR}>{{...}}", signs=(_SEPARATOR,)),
    CallWriting(
        name="Kimi K2",
        shown="<|tool_call_begin|>NAME<|tool_call_argument_begin|>",
        signs=("<|tool_call_argument_begin|>",),
    ),
    CallWriting(
        name="harmony (gpt-oss)", shown="<|channel|>commentary to=NAME", signs=("<|channel|>",)
    ),
    CallWriting(name="InternLM", shown="<|action_start|><|plugin|>", signs=("<|action_start|>",)),
    CallWriting(
        name="LFM2", shown="<|tool_call_start|>[NAME(...)]", signs=("<|tool_call_start|>",)
    ),
    CallWriting(name="Phi-4-mini", shown="<|tool_call|>[...]", signs=("<|tool_call|>",)),
    CallWriting(name="Command R", shown="<|START_ACTION|>[...]", signs=("<|START_ACTION|>",)),
    CallWriting(name="Gemma 4", shown="<|tool_call>call:NAME{...}", signs=("<|tool_call>",)),
    CallWriting(name="Gemma", shown="<start_function_call>", signs=("<start_function_call>",)),
    CallWriting(name="Olmo 3", shown="<function_calls>NAME(...)", signs=("<function_calls>",)),
    CallWriting(name="Nemotron", shown="<TOOLCALL>[...]", signs=("<TOOLCALL>",)),
    CallWriting(name="Hunyuan", shown="<tool_calls>...", signs=("<tool_calls>",)),
    CallWriting(name="Hermes", shown='<tool_call>{"name": ...}', signs=("<tool_call>",)),
    CallWriting(
        name="Mistral v11 and later",
        shown="[TOOL_CALLS]NAME[ARGS]{...}",
        signs=("[TOOL_CALLS]", "[ARGS]"),
    ),
    CallWriting(name="Mistral", shown="[TOOL_CALLS] [{...}]", signs=("[TOOL_CALLS]",)),
    CallWriting(name="Llama 3.1", shown="<|python_tag|>", signs=("<|python_tag|>",)),
)
"""The ways of writing that are told apart by more come before those by less: <tool_call> stands in
many."""


def writing_of(template: str) -> CallWriting | None:
    """How a template writes calls; None: it writes none, or in a way that is not known here."""
    for writing in _WRITINGS:
        if all(sign in template for sign in writing.signs):
            return writing
    return None


def mismatch(template: str, chosen: ChatFormat) -> str | None:
    """A sentence where a template is seen to write calls in another way than ``chosen`` does,
    with the names of both; None where it is not."""
    written = writing_of(template)
    if written is None or (chosen.calls is not None and written.name == chosen.name):
        return None
    ours = "no calls can be written: the tokenizer has no special tokens for them"
    if chosen.calls is not None:
        ours = f"calls are written as {chosen.name} does, {_shown(chosen.calls)}"
    return (
        f"the chat template writes calls as {written.name} does, {written.shown}; by its special "
        f"tokens the format {chosen.name} was chosen, and {ours}"
    )


def _shown(syntax: CallSyntax) -> str:
    if not isinstance(syntax, JsonCalls):
        return syntax.opener or "as text"
    call = f'{{"name": ..., "{syntax.arguments_key}": ...}}'
    return f"{syntax.opener or ''}{syntax.before.strip()}{call}{syntax.after.strip()}" + (
        syntax.closer or ""
    )
