"""Where the items of a request stand behind the chain that it continues.

A request alone cannot say in which order its outputs stand if their calls are in the chain. They
stand there as in a history that comes whole (``tools_api.call_order``): behind their calls, in the
order of these. Where a warm-up has brought something that they stand in front of, or outputs that
formats write together with them, the turn continues the chain before that and says it anew: the
tokens are those of the history that comes whole, and what is kept is a prefix of them.

Always true: the items of the chain that comes out, then those that come out, are those of the chain
that went in and of the request in the order of ``in_call_order``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sessions.durable.transcript import Entry, chain
from tools_api import errors
from tools_api.call_order import by_model, in_call_order, with_names
from tools_api.items import Call, CallOutput, Item


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContinuedInput:
    """The chain that a turn continues, and the items that it says behind it."""

    parent: Entry | None
    items: tuple[Item, ...]
    warnings: tuple[str, ...] = ()


def place_outputs(
    parent: Entry | None, items: tuple[Item, ...], *, complete: bool
) -> ContinuedInput:
    """Put the outputs among ``items`` behind the calls of the chain.

    Args:
        items: in the order of ``in_call_order`` as far as their own calls go.
        complete: the model is to go on behind them.

    Raises:
        ApiError: an output answers no call; or as ``in_call_order``.
    """
    named = _named(parent, items)
    if not named:
        return ContinuedInput(parent=parent, items=items)
    links = _since(parent, named)
    held = [item for _, _, own in links for item in own]
    ordered = in_call_order((*held, *items), complete=complete)
    kept, length = _kept(links, held, ordered.items)
    if kept is not None:
        own = with_names(ordered.items[length:], ordered.items)
        return ContinuedInput(parent=kept, items=own, warnings=ordered.warnings())
    first, before, _ = links[0]
    return ContinuedInput(
        parent=first.parent, items=(*before, *ordered.items), warnings=ordered.warnings()
    )


_Link = tuple[Entry, Sequence[Item], Sequence[Item]]
"""An entry with its items: those that are not looked at, and those that are."""


def _named(parent: Entry | None, items: Sequence[Item]) -> dict[str, None]:
    """The calls of the chain that the items answer or repeat, by their ids."""
    waiting = parent.open_calls if parent is not None else frozenset[str]()
    called, named = set[str](), dict[str, None]()
    for item in items:
        if isinstance(item, Call):
            called.add(item.call_id)
            if item.call_id in waiting:
                named[item.call_id] = None
        elif isinstance(item, CallOutput) and item.call_id not in called:
            named[item.call_id] = None
    return named


def _since(parent: Entry | None, named: dict[str, None]) -> list[_Link]:
    """The newest links of the chain, the oldest first, from the beginning of what the model said
    when it made the first of these calls."""
    missing, links = dict(named), list[_Link]()
    for entry in chain(parent):
        own = (*entry.input_items, *entry.output_items)
        begin = len(own) - sum(1 for _ in _looked_at(own, missing))
        links.append((entry, own[:begin], own[begin:]))
        if begin:
            break
    if missing:
        raise errors.unknown_call(next(iter(missing)))
    return links[::-1]


def _looked_at(own: Sequence[Item], missing: dict[str, None]) -> Iterator[Item]:
    """Items from the last one backwards, until no call is missing and the run has begun; what is
    found is not ``missing`` any more."""
    for item in reversed(own):
        if not missing and not by_model(item):
            return
        yield item
        if isinstance(item, Call):
            missing.pop(item.call_id, None)


def _kept(
    links: Sequence[_Link], held: Sequence[Item], ordered: Sequence[Item]
) -> tuple[Entry | None, int]:
    """The newest entry up to which nothing has changed, and how many of the held items that are."""
    same = 0
    while same < len(held) and same < len(ordered) and ordered[same] is held[same]:
        same += 1
    kept: tuple[Entry | None, int] = (None, 0)
    length = 0
    for entry, _, own in links:
        length += len(own)
        if length <= same and not _among_outputs(ordered, length):
            kept = (entry, length)
    return kept


def _among_outputs(items: Sequence[Item], at: int) -> bool:
    """Whether outputs stand on both sides."""
    if not 0 < at < len(items):
        return False
    return isinstance(items[at - 1], CallOutput) and isinstance(items[at], CallOutput)
