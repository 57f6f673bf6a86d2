"""gpt-oss: harmony messages, the tools as TypeScript in the developer's message.

Always true: see ``tools_api.chat_format``; where the published template rewrites history this
does not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools_api.chat_format import (
    TEMPLATE_DATE,
    AssistantTurn,
    ChatFormat,
    Segment,
    SegmentWriter,
    TemplateOptions,
    to_json,
    turns,
)
from tools_api.harmony import (
    ANALYSIS,
    CALL,
    CHANNEL,
    COMMENTARY,
    CONSTRAIN,
    END,
    FINAL,
    MESSAGE,
    NAMESPACE,
    RETURN,
    START,
    HarmonyCalls,
)
from tools_api.items import FunctionCallOutput, Item, Message
from tools_api.tools import FunctionTool

_LONGEST_ELEMENT = 50
_EFFORTS = {None: "medium", "none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""The efforts that the model knows, by those that a request may name."""


class Harmony(ChatFormat):
    """gpt-oss 20b and 120b. It always reasons; a request says how much."""

    name = "harmony (gpt-oss)"
    thinking = True
    knows_effort = True

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.end_of_turn = tuple(filter(has_token, (RETURN, CALL)))
        self.calls = HarmonyCalls()

    def output_specials(self, *, thinking: bool, calls: bool) -> frozenset[str]:
        """Channels stand in every output."""
        names = {*self.end_of_turn, START, CHANNEL, MESSAGE, END}
        return frozenset(names | ({CONSTRAIN} if calls else set()))

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """A system message that is the model's own, then the developer's."""
        out = self._writer()
        effort = _EFFORTS.get(options.effort, options.effort)
        text = (
            "You are ChatGPT, a large language model trained by OpenAI.\n"
            f"Knowledge cutoff: 2024-06\nCurrent date: {TEMPLATE_DATE.isoformat()}\n\n"
            f"Reasoning: {effort}\n\n# Valid channels: analysis, commentary, final. "
            "Channel must be included for every message."
        )
        if tools:
            text += "\nCalls to these tools must go to the commentary channel: 'functions'."
        self._message(out, "system", text)
        if instructions or tools:
            told = f"# Instructions\n\n{instructions}\n\n" if instructions else ""
            self._message(out, "developer", told + (_namespace(tools) if tools else ""))
        return out.segments

    def items(
        self,
        items: Sequence[Item],
        *,
        first: bool,
        open_output: bool,
        options: TemplateOptions,
        after_output: bool = True,
    ) -> list[Segment]:
        """Each call is a message, so is each output, from the function to the model."""
        out = self._writer()
        if open_output:
            out.special(END)
        names: dict[str, str] = {}
        for turn in turns(items):
            match turn:
                case Message():
                    role = "user" if turn.role == "user" else "developer"
                    self._message(out, role, turn.text)
                case AssistantTurn():
                    names |= {call.call_id: call.full_name for call in turn.calls}
                    self._assistant(out, turn)
                case outputs:
                    for output in outputs:
                        self._output(out, output, names)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens a message of the assistant's; its header is the model's to write."""
        out = self._writer()
        out.special(START)
        out.text("assistant")
        return out.segments

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        if turn.reasoning is not None:
            self._message(out, "assistant", turn.reasoning, channel=ANALYSIS)
        if turn.text is not None:
            channel = COMMENTARY if turn.calls else FINAL
            self._message(out, "assistant", turn.text, channel=channel)
        for call in turn.calls:
            out.special(START)
            out.text(f"assistant to={NAMESPACE}{call.full_name}")
            out.special(CHANNEL)
            out.text(f"{COMMENTARY} json")
            out.special(MESSAGE)
            out.text(call.arguments or "{}")
            out.special(CALL)

    def _output(
        self, out: SegmentWriter, output: FunctionCallOutput, names: Mapping[str, str]
    ) -> None:
        """Whose it is, is said where the call is known."""
        name = output.name or names.get(output.call_id)
        author = NAMESPACE.rstrip(".") if name is None else NAMESPACE + name
        text = to_json(output.output)
        self._message(out, f"{author} to=assistant", text, channel=COMMENTARY)

    def _message(
        self, out: SegmentWriter, author: str, text: str, *, channel: str | None = None
    ) -> None:
        out.special(START)
        out.text(author)
        if channel is not None:
            out.special(CHANNEL)
            out.text(channel)
        out.special(MESSAGE)
        out.text(text)
        out.special(END)


def _namespace(tools: Sequence[FunctionTool]) -> str:
    lines = ["# Tools\n\n## functions\n\nnamespace functions {\n\n"]
    for tool in tools:
        lines.append(f"// {tool.shown_description or ''}\ntype {tool.name} = ")
        properties = tool.parameters.get("properties")
        required = tool.parameters.get("required") or []
        if not isinstance(properties, dict) or not properties:
            lines.append("() => any;\n\n")
            continue
        lines.append("(_: {\n")
        lines += [_parameter(name, schema, required) for name, schema in properties.items()]
        lines.append("}) => any;\n\n")
    return "".join([*lines, "} // namespace functions"])


def _parameter(name: str, schema: Any, required: Any) -> str:
    fields = schema if isinstance(schema, dict) else {}
    line = f"// {fields['description']}\n" if fields.get("description") else ""
    optional = "" if isinstance(required, list) and name in required else "?"
    line += f"{name}{optional}: {_type(fields)}"
    if "default" in fields:
        default = fields["default"]
        if fields.get("enum"):
            line += f", // default: {default}"
        elif fields.get("oneOf"):
            line += f"// default: {default}"
        else:
            line += f", // default: {to_json(default)}"
    return line + ",\n"


def _type(fields: Mapping[str, Any]) -> str:
    """A schema as TypeScript, as far as the published template goes."""
    kind = fields.get("type")
    nullable = " | null" if fields.get("nullable") else ""
    if kind == "array":
        return _array(fields) + nullable
    if isinstance(kind, list) and kind:
        return " | ".join(map(str, kind))
    if fields.get("oneOf"):
        return _alternatives(fields["oneOf"])
    if kind == "string":
        listed = fields.get("enum")
        texts = " | ".join(f'"{text}"' for text in listed or ())
        return texts or "string" + nullable
    if kind in ("number", "integer"):
        return "number"
    if kind == "boolean":
        return "boolean"
    return _object(fields) if kind == "object" else "any"


def _array(fields: Mapping[str, Any]) -> str:
    items = fields.get("items")
    if not isinstance(items, dict) or not items:
        return "any[]"
    if items.get("type") in ("string", "number", "integer", "boolean"):
        plain = {"integer": "number"}
        return f"{plain.get(items['type'], items['type'])}[]"
    inner = _type(items)
    return "any[]" if inner == "object | object" or len(inner) > _LONGEST_ELEMENT else f"{inner}[]"


def _object(fields: Mapping[str, Any]) -> str:
    properties = fields.get("properties")
    if not isinstance(properties, dict) or not properties:
        return "object"
    required = fields.get("required") or []
    inner = [
        f"{name}{'' if name in required else '?'}: "
        + _type(schema if isinstance(schema, dict) else {})
        for name, schema in properties.items()
    ]
    return "{\n" + ", ".join(inner) + "}"


def _alternatives(variants: Sequence[Any]) -> str:
    known = [variant if isinstance(variant, dict) else {} for variant in variants]
    if len(known) > 1 and any(variant.get("type") == "object" for variant in known):
        return "any"
    texts = []
    for variant in known:
        text = _type(variant)
        if variant.get("description"):
            text += f"// {variant['description']}"
        if "default" in variant:
            text += f"// default: {to_json(variant['default'])}"
        texts.append(text)
    return " | ".join(texts)
