"""In which of our call syntaxes a template writes calls, white space of its own included.

Each syntax becomes a pattern in which white space between its marks is free. What a pattern finds
is written again by the syntax with that white space, and only what comes out equal counts.

Knows call syntaxes and texts. Knows no template.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.chat_judge.literals import Literals
from tools_api.call_writing import write_calls
from tools_api.chat_format import CallSyntax, JsonCalls, SegmentWriter, call_object
from tools_api.chat_generic import Learned, learned_syntax
from tools_api.items import FunctionCall
from tools_api.raw_calls import RawCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A syntax that writes the calls, and what stands around them."""

    learned: Learned
    """How it differs from one of ours."""
    syntax: CallSyntax
    before: str
    behind: str

    def written(self, calls: Sequence[FunctionCall]) -> str:
        """The calls of one turn as text."""
        return _text(self.syntax, calls)


def matching_syntax(
    texts: Sequence[str],
    calls: Sequence[FunctionCall],
    literals: Literals,
    ways: Sequence[Learned],
) -> Match | None:
    """The syntax in which the texts hold calls; None: none of the ways.

    Args:
        texts: of a turn with one call, with two, with three.
        calls: all of them.
        ways: to try, in order.
    """
    for way in ways:
        try:
            syntax = learned_syntax(way, literals.has_token)
            _text(syntax, calls)
        except (ValueError, TypeError):
            continue
        if (match := _match(way, syntax, texts, calls)) is not None:
            return match
    return None


def _match(
    way: Learned, syntax: CallSyntax, texts: Sequence[str], calls: Sequence[FunctionCall]
) -> Match | None:
    two = calls[:2]
    for gaps in (dict[str, str](), *_gaps(syntax, texts[1], two)):
        changes: dict[str, Any] = dict(gaps)
        own = dataclasses.replace(syntax, **changes)
        around = [text.split(_text(own, calls[: i + 1])) for i, text in enumerate(texts)]
        if any(len(each) != 2 or each != around[0] for each in around):
            continue
        before, behind = around[0]
        if not before.strip() and not behind.strip():
            learned = Learned(format=way.format, gaps={**way.gaps, **gaps})
            return Match(learned=learned, syntax=own, before=before, behind=behind)
    return None


def _text(syntax: CallSyntax, calls: Sequence[FunctionCall]) -> str:
    out = SegmentWriter(lambda _: True)
    write_calls(out, syntax, calls)
    return "".join(segment.text for segment in out.segments)


def _gaps(syntax: CallSyntax, text: str, calls: Sequence[FunctionCall]) -> Iterator[dict[str, str]]:
    """White space that a text has where the syntax may have some."""
    match syntax:
        case RawCalls():
            pattern = _Pattern(syntax).raw(syntax, calls)
        case JsonCalls():
            pattern = _Pattern(syntax).json(syntax, calls)
        case _:
            return
    if found := re.search(pattern, text):
        own = {key: value or "" for key, value in found.groupdict().items()}
        yield {key: value for key, value in own.items() if value != getattr(syntax, key)}


class _Pattern:
    """A pattern in the making: each gap is free at its first place and the same at every other."""

    def __init__(self, syntax: CallSyntax) -> None:
        self._syntax = syntax
        self._seen: set[str] = set()

    def raw(self, syntax: RawCalls, calls: Sequence[FunctionCall]) -> str:
        """Matches for calls with raw text between tags."""
        return self._calls(calls, lambda each: self._raw_call(syntax, each))

    def json(self, syntax: JsonCalls, calls: Sequence[FunctionCall]) -> str:
        """Matches for calls that are objects."""
        return self._calls(
            calls, lambda each: re.escape(call_object(each, syntax)), around=("before", "after")
        )

    def _calls(
        self,
        calls: Sequence[FunctionCall],
        one: Callable[[FunctionCall], str],
        around: tuple[str, ...] = ("before",),
    ) -> str:
        syntax, parts = self._syntax, []
        for i, each in enumerate(calls):
            last = i == len(calls) - 1
            parts.append(self._gap("between") if i else "")
            if syntax.repeats_opener or i == 0:
                parts += [re.escape(syntax.opener or ""), self._gap("before")]
            parts.append(one(each))
            if syntax.repeats_opener or last:
                parts.append(self._gap("after") if "after" in around else "")
                parts.append(re.escape(syntax.closer or ""))
        return "".join(parts)

    def _raw_call(self, syntax: RawCalls, each: FunctionCall) -> str:
        marked: dict[str, Any] = {name: f"\0{name}\0" for name in self._free(syntax)}
        own = dataclasses.replace(syntax, opener=None, closer=None, before="", **marked)
        pieces = _text(own, [each]).split("\0")
        return "".join(
            self._gap(piece) if i % 2 else re.escape(piece) for i, piece in enumerate(pieces)
        )

    def _free(self, syntax: RawCalls) -> Iterator[str]:
        yield from ("name_gap", "padding", "value_gap")
        if syntax.before_value.text:
            yield "key_gap"
        if syntax.end.text:
            yield "end_gap"

    def _gap(self, name: str) -> str:
        literal = re.sub(r"(?:\\?\s)+", lambda _: r"\s*", re.escape(getattr(self._syntax, name)))
        if name in self._seen:
            return f"(?P={name})"
        self._seen.add(name)
        return f"(?P<{name}>" + r"\s*" + (literal if literal != r"\s*" else "") + r"\s*)"
