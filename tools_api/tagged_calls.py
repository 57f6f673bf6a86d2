"""Calls whose tags are named after keys, each behind one special token: MiniMax M3.

The special token stands before every tag, so no text opens or closes anything: strings stand as
they are. An object is a tag for each member, an array one ``<item>`` for each item, whatever is
inside what.

Knows the syntax and how calls are written. Reading is ``tools_api.tagged_call_reader``, binding is
``tools_api.tagged_call_rules``, what a text means at its place ``tools_api.tagged_places``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools_api import exact_json
from tools_api.chat_format import CallSyntax, SegmentWriter, to_json
from tools_api.items import FunctionCall
from tools_api.raw_calls import Delimiter, write_mark

ITEM = "item"
INVOKE_BEFORE, INVOKE_AFTER, INVOKE_CLOSER = '<invoke name="', '">', "</invoke>"
"""Around the name of a function, and behind its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls(CallSyntax):
    """``opener`` stands before each tag; all calls of a turn between ``before`` and ``after``."""

    before: Delimiter
    """The tag around all calls, without the token before it."""
    after: Delimiter

    @property
    def mark(self) -> str:
        """The special token before each tag."""
        assert self.opener is not None
        return self.opener

    @property
    def specials(self) -> frozenset[str]:
        tags = {tag.text for tag in (self.before, self.after) if tag.special}
        return frozenset({self.mark, *tags})


def write_tagged_calls(
    out: SegmentWriter, syntax: TaggedCalls, calls: Sequence[FunctionCall], *, nulls: bool = True
) -> None:
    """Add the calls of one turn. Arguments that are no object are written as they are.

    Args:
        nulls: ``null`` is written; else members that are null are left out, as the published
            template does, and an item that is null is empty.
    """
    if not calls:
        return
    out.special(syntax.mark)
    write_mark(out, syntax.before)
    out.text("\n")
    for call in calls:
        out.special(syntax.mark)
        out.text(INVOKE_BEFORE + call.full_name + INVOKE_AFTER)
        value = _object_of(call.arguments)
        if value is None:
            out.text(call.arguments)
        else:
            _write(out, syntax.mark, value, nulls)
        out.special(syntax.mark)
        out.text(INVOKE_CLOSER + "\n")
    out.special(syntax.mark)
    write_mark(out, syntax.after)


def _write(out: SegmentWriter, mark: str, value: Any, nulls: bool) -> None:
    match value:
        case str():
            out.text(value)
        case dict():
            for key, inner in value.items():
                if nulls or inner is not None:
                    _write_tag(out, mark, key, inner, nulls)
        case list():
            for inner in value:
                _write_tag(out, mark, ITEM, inner, nulls)
        case None:
            out.text("null" if nulls else "")
        case _:
            out.text(to_json(value))


def _write_tag(out: SegmentWriter, mark: str, name: str, value: Any, nulls: bool) -> None:
    out.special(mark)
    out.text(f"<{name}>")
    _write(out, mark, value, nulls)
    out.special(mark)
    out.text(f"</{name}>")


def _object_of(arguments: str) -> dict[str, Any] | None:
    try:
        value = exact_json.loads(arguments or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
