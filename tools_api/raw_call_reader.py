"""Calls with raw text between tags, read as they stream, to JSON arguments.

A string's text is passed on as it comes; any other value when its tag closes it, since only then
it is known whether it is JSON. White space between tags is the format's.

Knows ``RawCalls`` and the types of arguments. Always true: see ``tools_api.call_reader``; nothing
of a value is dropped but the line break on either side that belongs to the format, and half a tag
at the end of an output that was cut.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from tools_api.call_reader import SPACE, CallReader
from tools_api.chat_format import to_json
from tools_api.raw_calls import Delimiter, RawCalls
from tools_api.raw_values import ALL_TYPES, Types, begun_json_of, json_of

ArgumentTypes = Callable[[str], Mapping[str, Types]]
_STRING: Types = frozenset({"string"})
_At = Literal["name_tag", "name", "body", "key", "key_gap", "value", "plain", "next"]


class RawCallReader(CallReader):
    """Reads what one opener opens."""

    def __init__(self, syntax: RawCalls, types: ArgumentTypes, plain: frozenset[str]) -> None:
        """
        Args:
            types: those of a tool's arguments, by its name.
            plain: names of the tools whose input is plain text.
        """
        super().__init__()
        self._syntax = syntax
        self._types_of_tool = types
        self._plain = plain
        self._seen = syntax.opener or ""
        """The text taken of a call whose name is not known yet."""
        self._at: _At = "name_tag" if syntax.before_name.text else "name"
        self._types: Mapping[str, Types] = {}
        self._value_types: Types = ALL_TYPES
        self._begun = False
        """Some of the value, or of plain text, was passed on."""
        self._num_arguments = 0

    @property
    def unannounced(self) -> str:
        """See ``CallReader``."""
        return self._seen + self._held if self._at in ("name_tag", "name") else ""

    def special(self, name: str) -> bool:
        """See ``CallReader``."""
        syntax, mark = self._syntax, Delimiter(name, special=True)
        if self._at == "name" and not syntax.after_name.text and self._held.strip(SPACE):
            self._named(len(self._held))
        if name == syntax.closer:
            return self._close()
        return self._tag(mark)

    def end_of_turn(self) -> None:
        """See ``CallReader``."""
        if self._syntax.closer is None:
            self._close()

    def stop(self) -> None:
        """See ``CallReader``. What there is of a value is told."""
        if self._at == "value":
            self._break_value()
        super().stop()

    def _close(self) -> bool:
        """The text that closes all calls behind the opener."""
        if self._at == "body" and not self._syntax.end.text and not self._held:
            self._end_call()
        if self._at == "plain":
            self._done()
        elif self._at != "next":
            return False
        self._at, self.over = "next", True
        return True

    def _step(self) -> bool:
        match self._at:
            case "name":
                return self._read_name()
            case "key":
                return self._read_key()
            case "value":
                return self._read_value()
            case "plain":
                body = self._held if self._begun else self._held.removeprefix("\n")
                self._begun, self._held = True, ""
                self._add(body)
                return False
        self._skip(len(self._held) - len(self._held.lstrip(SPACE)))
        return bool(self._held) and self._read_tag()

    def _skip(self, size: int) -> None:
        if self._at == "name_tag":
            self._seen += self._held[:size]
        self._held = self._held[size:]

    def _read_tag(self) -> bool:
        """One of the tags that may stand here has to come."""
        marks = [mark for mark in self._expected() if mark.text and not mark.special]
        for mark in marks:
            if self._held.startswith(mark.text):
                self._skip(len(mark.text))
                return self._tag(mark)
        if any(mark.text.startswith(self._held) for mark in marks):
            return False
        if self.inside:
            self._done(complete=False)
        self.over = True
        if self._at == "name_tag":
            self._held = self._seen + self._held
        self._at = "next"
        return False

    def _expected(self) -> tuple[Delimiter, ...]:
        syntax = self._syntax
        match self._at:
            case "body":
                return syntax.before_key, syntax.end
            case "key_gap":
                return (syntax.before_value,)
            case "next" if syntax.repeats_opener:
                return ()
        return (syntax.before_name,)

    def _tag(self, mark: Delimiter) -> bool:
        """Go on behind a tag; False: it cannot stand here."""
        syntax = self._syntax
        match self._at:
            case "name_tag" | "next" if mark == syntax.before_name:
                self._seen += "" if self._at == "name_tag" and not mark.special else mark.text
                self._at = "name"
            case "name" if mark == syntax.after_name:
                self._named(len(self._held))
            case "body" if mark == syntax.before_key:
                self._at = "key"
            case "body" if mark == syntax.end:
                self._end_call()
            case "key" if mark == syntax.after_key:
                self._keyed(len(self._held), 0)
            case "key_gap" if mark == syntax.before_value and not self._held:
                self._at = "value"
            case "value" if mark == syntax.after_value:
                self._end_value(len(self._held), 0)
            case _:
                return False
        return True

    def _read_name(self) -> bool:
        syntax = self._syntax
        body = self._held.lstrip(SPACE)
        ends = (syntax.after_name.text, "") if syntax.after_name.text else ("\n", "<")
        found = [body.find(end) for end in ends if end and end in body]
        if not found or syntax.after_name.special:
            return False
        self._named(len(self._held) - len(body) + min(found), len(syntax.after_name.text))
        return True

    def _named(self, size: int, closing: int = 0) -> None:
        name = self._held[:size].strip(SPACE)
        self._held = self._held[size + closing :]
        self._start(name)
        self._seen = ""
        self._num_arguments, self._begun = 0, False
        self._types = self._types_of_tool(name)
        self._at = "plain" if name in self._plain else "body"

    def _read_key(self) -> bool:
        closing = self._syntax.after_key
        size = -1 if closing.special else self._held.find(closing.text)
        if size >= 0:
            self._keyed(size, len(closing.text))
        return size >= 0

    def _keyed(self, size: int, closing: int) -> None:
        key, self._held = self._held[:size], self._held[size + closing :]
        self._value_types = self._types.get(key, ALL_TYPES)
        self._add(f"{', ' if self._num_arguments else '{'}{to_json(key)}: ")
        self._num_arguments += 1
        self._begun = False
        self._at = "key_gap" if self._syntax.before_value.text else "value"

    def _read_value(self) -> bool:
        closing = self._syntax.after_value
        size = -1 if closing.special else self._held.find(closing.text)
        if size >= 0:
            self._end_value(size, len(closing.text))
            return True
        if self._value_types == _STRING:
            self._pass_on(len(self._held) - self._may_close())
        return False

    def _pass_on(self, size: int) -> None:
        """Pass on as much of a string as is certain."""
        padding = self._syntax.padding
        if not self._begun:
            if padding.startswith(self._held[:size]):
                return
            start = len(padding) if self._held.startswith(padding) else 0
            self._held, size, self._begun = self._held[start:], size - start, True
            self._add('"')
        self._add(to_json(self._held[:size])[1:-1])
        self._held = self._held[size:]

    def _may_close(self) -> int:
        """How many characters at the end may belong to what closes the value."""
        padding, closing = self._syntax.padding, self._syntax.after_value
        tag = "" if closing.special else closing.text
        for size in range(min(len(padding + tag), len(self._held)), 0, -1):
            tail = self._held[-size:]
            if (padding + tag).startswith(tail) or tag.startswith(tail):
                return size
        return 0

    def _end_value(self, size: int, closing: int) -> None:
        syntax = self._syntax
        value, self._held = self._held[:size], self._held[size + closing :]
        if self._begun:
            self._add(to_json(value.removesuffix(syntax.padding))[1:-1] + '"')
        else:
            value = value.removeprefix(syntax.padding).removesuffix(syntax.padding)
            self._add(json_of(value, self._value_types, python=syntax.python_words))
        self._at = "body"

    def _break_value(self) -> None:
        """Tell what there is of a value that nothing closes."""
        syntax = self._syntax
        value = self._held[: len(self._held) - self._may_close()]
        self._held = ""
        if self._begun:
            self._add(to_json(value)[1:-1])
        else:
            value = value.removeprefix(syntax.padding)
            self._add(begun_json_of(value, self._value_types, python=syntax.python_words))

    def _end_call(self) -> None:
        self._add("}" if self._num_arguments else "{}")
        self._done()
        self._at = "next"
