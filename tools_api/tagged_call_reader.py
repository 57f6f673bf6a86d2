"""Calls whose tags are named after keys, read as they stream, to JSON arguments.

A string's text is passed on as it comes where nothing but a string may stand; any other value when
its tag closes it, since only then it is known what it is. White space between tags is the format's.
A tag closes what was opened last; its name has to be the same, but for members that the schema does
not declare, whose names no grammar can hold a model to.

Knows ``TaggedCalls`` and places. Always true: see ``tools_api.call_reader``; nothing of a value is
dropped but white space around tags inside it, and half a tag at the end of an output that was cut.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tools_api.call_reader import SPACE, CallReader
from tools_api.chat_format import to_json
from tools_api.raw_calls import Delimiter
from tools_api.raw_values import begun_json_of
from tools_api.tagged_calls import (
    INVOKE_AFTER,
    INVOKE_BEFORE,
    INVOKE_CLOSER,
    ITEM,
    TaggedCalls,
)
from tools_api.tagged_places import Place, leaf_json

Schemas = Callable[[str], Mapping[str, Any]]


@dataclass(slots=True)
class _Value:
    """A value that is open."""

    place: Place
    name: str = ""
    is_declared: bool = True
    kind: Literal["text", "object", "array"] = "text"
    text: str = ""
    """What was written so far, where it is not told yet."""
    begun: bool = False
    """It is told as a string."""
    size: int = 0
    """Members or items."""


class TaggedCallReader(CallReader):
    """Reads what one opener opens: all calls of a turn."""

    def __init__(self, syntax: TaggedCalls, schemas: Schemas, plain: frozenset[str]) -> None:
        """
        Args:
            schemas: the parameters of a tool, by its name.
            plain: names of the tools whose input is plain text.
        """
        super().__init__()
        self._syntax = syntax
        self._schemas = schemas
        self._plain = plain
        self._at: Literal["tag", "gap", "text", "plain"] = "tag"
        self._in_section = False
        """The tag around all calls was read."""
        self._open: list[_Value] = []
        """The values that are open, the arguments of the call first."""
        self._is_plain = False
        """The call that is open takes plain text."""
        self._seen = syntax.mark
        """The text taken of a call whose name is not known yet."""

    @property
    def unannounced(self) -> str:
        """See ``CallReader``."""
        return self._seen + self._held if self._seen and not self.inside else ""

    def special(self, name: str) -> bool:
        """See ``CallReader``."""
        syntax = self._syntax
        if self._at == "tag":
            if self._held.strip(SPACE) or self.inside or name != self._around().text:
                return False
            self._held = ""
            self._seen += name
            return self._take(name)
        if name != syntax.mark or self._held.strip(SPACE):
            return False
        if not self.inside:
            self._seen += self._held + name
        self._held, self._at = "", "tag"
        return True

    def end_of_turn(self) -> None:
        """See ``CallReader``: every call has a tag that closes it."""

    def stop(self) -> None:
        """See ``CallReader``. What there is of a value is told."""
        if self.inside and self._open and self._at in ("text", "tag"):
            value = self._open[-1]
            if value.kind == "text" and not value.begun:
                self._add(begun_json_of(value.text, value.place.types, python=False))
        super().stop()

    def _step(self) -> bool:
        match self._at:
            case "tag":
                return self._read_tag()
            case "plain":
                body = self._held if self._open[-1].begun else self._held.removeprefix("\n")
                self._open[-1].begun, self._held = True, ""
                self._add(body)
            case "text":
                self._read_text(self._open[-1])
            case "gap":
                if self._held.strip(SPACE):
                    return self._give_up()
        return False

    def _read_text(self, value: _Value) -> None:
        text, self._held = self._held, ""
        if value.place.types != {"string"}:
            value.text += text
            return
        self._add(("" if value.begun else '"') + to_json(text)[1:-1])
        value.begun = True

    def _read_tag(self) -> bool:
        held = self._held.lstrip(SPACE)
        if held and not any(_may_be(tag, held) for tag in self._expected()):
            return self._give_up()
        head, found, rest = held.partition(">")
        if not found:
            return False
        tag = head + found
        if not self.inside:
            self._seen += tag
        self._held = rest
        if self._take(tag):
            return True
        return self._give_up(tag)

    def _around(self) -> Delimiter:
        """The tag around all calls that is due."""
        return self._syntax.after if self._in_section else self._syntax.before

    def _expected(self) -> tuple[str, ...]:
        if self.inside:
            return ("<",)
        around = self._around().text
        return (INVOKE_BEFORE, around) if self._in_section else (around,)

    def _take(self, tag: str) -> bool:
        """Go on behind a tag; False: it cannot stand here."""
        if not self.inside and tag == self._around().text:
            self.over, self._in_section, self._at = self._in_section, True, "gap"
            if self.over:
                self._seen = ""
            return True
        if not self.inside:
            return self._in_section and self._take_call(tag)
        if self._is_plain:
            return tag == INVOKE_CLOSER and self._end_call("")
        if tag.startswith("</"):
            return self._close(tag)
        return not tag.startswith(INVOKE_BEFORE) and self._take_value(tag[1:-1])

    def _take_call(self, tag: str) -> bool:
        if not tag.startswith(INVOKE_BEFORE) or not tag.endswith(INVOKE_AFTER):
            return False
        name = tag.removeprefix(INVOKE_BEFORE).removesuffix(INVOKE_AFTER)
        if not name.strip(SPACE):
            return False
        self._start(name)
        schema = self._schemas(name)
        self._open = [_Value(place=Place(schema, schema), kind="object")]
        self._is_plain = name in self._plain
        self._at = "plain" if self._is_plain else "gap"
        return True

    def _take_value(self, name: str) -> bool:
        """A member or an item is opened inside what is open."""
        parent = self._open[-1]
        if not name or not self._is_container(parent, name):
            return False
        first = parent.size == 0
        parent.size += 1
        if parent.kind == "array":
            self._add("[" if first else ", ")
            self._open.append(_Value(place=parent.place.item, name=name))
        else:
            self._add(("{" if first else ", ") + to_json(name) + ": ")
            declared = name in parent.place.declared
            place = parent.place.member(name)
            self._open.append(_Value(place=place, name=name, is_declared=declared))
        self._at = "text"
        return True

    def _is_container(self, value: _Value, name: str) -> bool:
        """Whether a tag of that name may stand inside a value."""
        if value.kind == "text":
            if value.begun or value.text.strip(SPACE):
                return False
            is_array = name == ITEM and "array" in value.place.types
            value.kind = "array" if is_array else "object"
        return value.kind == "object" or name == ITEM

    def _close(self, tag: str) -> bool:
        """The tag that closes what was opened last."""
        value = self._open[-1]
        if len(self._open) == 1:
            return tag == INVOKE_CLOSER and self._end_call("}" if value.size else "{}")
        if tag != f"</{value.name}>" and (value.is_declared or tag == INVOKE_CLOSER):
            return False
        match value.kind:
            case "object":
                self._add("}")
            case "array":
                self._add("]")
            case _ if value.begun:
                self._add('"')
            case _:
                self._add(leaf_json(value.text, value.place.types))
        self._open.pop()
        self._at = "gap"
        return True

    def _end_call(self, end: str) -> bool:
        self._add(end)
        self._done()
        self._open, self._seen, self._at = [], "", "gap"
        return True

    def _give_up(self, taken: str = "") -> bool:
        """What comes cannot stand here."""
        if self.inside:
            self._done(complete=False)
            self._seen = taken
        self._held, self._seen = self._seen + self._held, ""
        self.over = True
        return False


def _may_be(tag: str, held: str) -> bool:
    """Whether a text begins with a tag, or may still come to."""
    return held.startswith(tag) or tag.startswith(held)
