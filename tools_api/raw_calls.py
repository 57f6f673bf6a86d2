"""Calls whose arguments are raw text between tags: Qwen's XML, GLM, MiniMax.

A call names its function, then each argument by its key. A string's value is its text as it is;
any other value is its JSON. One line break on either side of a value belongs to the format where
it pads values; a value cannot hold the tag that closes it.

Knows the tags and how calls are written with them. Reading is ``tools_api.raw_call_reader``,
binding is ``tools_api.raw_call_rules``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools_api import exact_json
from tools_api.chat_format import CallSyntax, SegmentWriter, to_json
from tools_api.items import FunctionCall


@dataclass(frozen=True, slots=True)
class Delimiter:
    """A tag: one special token, or text."""

    text: str
    special: bool = False


NO_DELIMITER = Delimiter("")


def delimiter_of(text: str, has_token: Callable[[str], bool]) -> Delimiter:
    """The tag as the tokenizer has it."""
    return Delimiter(text, special=has_token(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCalls(CallSyntax):
    """``opener NAME (KEY VALUE)* end closer``, with tags around the name, the key and the value.

    White space in ``after_*`` and ``before`` is what is written; a reader takes any.
    """

    before: str = ""
    """White space behind the opener."""
    before_name: Delimiter = NO_DELIMITER
    after_name: Delimiter = NO_DELIMITER
    """Without one, the name goes to the end of its line or to the next tag."""
    name_gap: str = ""
    before_key: Delimiter
    after_key: Delimiter
    key_gap: str = ""
    before_value: Delimiter = NO_DELIMITER
    padding: str = ""
    """On either side of a value."""
    after_value: Delimiter
    value_gap: str = ""
    end: Delimiter = NO_DELIMITER
    """Behind the last argument."""
    end_gap: str = ""
    python_words: bool = False
    """Words are Python's: ``True``, ``False``, ``None``; JSON's are read as well."""

    @property
    def specials(self) -> frozenset[str]:
        marks = (
            self.before_name,
            self.after_name,
            self.before_key,
            self.after_key,
            self.before_value,
            self.after_value,
            self.end,
        )
        around = {name for name in (self.opener, self.closer) if name is not None}
        return frozenset(around | {mark.text for mark in marks if mark.special})


def write_raw_calls(out: SegmentWriter, syntax: RawCalls, calls: Sequence[FunctionCall]) -> None:
    """Add the calls of one turn. Arguments that are no object are written as they are."""
    each = syntax.repeats_opener
    for i, call in enumerate(calls):
        if i > 0:
            out.text(syntax.between)
        if each or i == 0:
            out.special(syntax.opener)
            out.text(syntax.before)
        _write_call(out, syntax, call)
        if each or i == len(calls) - 1:
            out.special(syntax.closer)


def raw_text(value: object, *, python: bool = False) -> str:
    """A value as it stands between its tags.

    Args:
        python: words are Python's.
    """
    if python and (value is None or isinstance(value, bool)):
        return str(value)
    return value if isinstance(value, str) else to_json(value)


def write_mark(out: SegmentWriter, mark: Delimiter) -> None:
    """Add a tag to a prompt."""
    if mark.special:
        out.special(mark.text)
    else:
        out.text(mark.text)


def _write_call(out: SegmentWriter, syntax: RawCalls, call: FunctionCall) -> None:
    write_mark(out, syntax.before_name)
    out.text(call.full_name)
    write_mark(out, syntax.after_name)
    out.text(syntax.name_gap)
    arguments = _object(call.arguments)
    if arguments is None:
        out.text(call.arguments)
    for key, value in (arguments or {}).items():
        write_mark(out, syntax.before_key)
        out.text(key)
        write_mark(out, syntax.after_key)
        out.text(syntax.key_gap)
        write_mark(out, syntax.before_value)
        text = raw_text(value, python=syntax.python_words)
        out.text(syntax.padding + text + syntax.padding)
        write_mark(out, syntax.after_value)
        out.text(syntax.value_gap)
    write_mark(out, syntax.end)
    out.text(syntax.end_gap)


def _object(arguments: str) -> dict[str, object] | None:
    try:
        value = exact_json.loads(arguments or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
