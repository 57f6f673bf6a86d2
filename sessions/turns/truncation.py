"""``truncation: auto``: what is left of a context that does not fit.

The oldest turns go first, then the oldest of the new items. What the request ends with stays,
and so does what answers an open call; if that alone does not fit, its text is cut in the
middle, with a note where something is missing. Pure decisions over items and their sizes.

Always true: an output never stays without its call, nor a call of the new items without its
output; turns that stay keep their token ids, but for the input of the first of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sessions.durable.transcript import Entry, Header, Renderer, Tail, chain, text_bytes
from tools_api.chat_format import TemplateOptions
from tools_api.items import Call, CallOutput, Item, Message, TextPart

_CHARS_PER_TOKEN = 8
"""Of a text that is cut, no more is looked at."""
_ATTEMPTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much a model reads."""

    max_tokens: int
    longest_token_bytes: int

    def least_tokens(self, item: Item) -> int:
        """No tokenisation of the item has fewer."""
        return text_bytes(item) // self.longest_token_bytes

    def is_hopeless(self, items: Sequence[Item]) -> bool:
        """One of them cannot fit, so that no seconds should go into tokenising it."""
        return any(self.least_tokens(item) > self.max_tokens for item in items)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Context:
    """What the model will read, split into what is held and what is new."""

    parent: Entry | None
    items: tuple[Item, ...]
    opening: Message | None
    header: Header
    open_calls: frozenset[str]
    digest: bytes
    """Over all items as they came, those included that truncation leaves out."""
    cuts: tuple[str, ...] = ()
    """What was cut, a sentence for each item."""


def truncated(
    context: Context, renderer: Renderer, options: TemplateOptions, room: Room
) -> Context:
    """A context of at most three quarters of the room, if what has to stay allows it.

    The slack keeps the next turns from truncating, and so missing the cache, each time.
    """
    target = room.max_tokens * 3 // 4 - len(context.header.ids)
    pinned = _pinned(context.items)
    lost = _calls_of(context, pinned)
    sizes = _Sizes(renderer, options, room)
    context, pinned = _with_shorter(context, pinned, sizes, target - sizes.of(lost))
    kept = _newest_turns(context, target - sizes.of(context.items))
    if kept:
        known = frozenset(item.call_id for entry in kept for item in _calls(entry))
        lost = [call for call in lost if call.call_id not in known]
        parent = context.parent if _is_whole(kept) else _rechained(kept[::-1], renderer)
        return replace(context, parent=parent, items=(*lost, *context.items))
    items = _newest_items((*lost, *context.items), {*pinned, *map(id, lost)}, sizes, target)
    return replace(context, parent=None, items=items)


class _Sizes:
    """Tokens of items on their own, counted once for each; of those that are hopelessly long as
    few as they can be."""

    def __init__(self, renderer: Renderer, options: TemplateOptions, room: Room) -> None:
        self._renderer = renderer
        self._options = options
        self._room = room
        self._known: dict[int, tuple[Item, int]] = {}

    def of(self, items: Sequence[Item]) -> int:
        return sum(map(self.of_one, items))

    def of_one(self, item: Item) -> int:
        if id(item) not in self._known:
            least = self._room.least_tokens(item)
            if least <= self._room.max_tokens:
                least = self._renderer.count((item,), self._options)
            self._known[id(item)] = (item, least)
        return self._known[id(item)][1]


# What has to stay


def _pinned(items: Sequence[Item]) -> set[int]:
    """Ids of the objects that must stay: the last one, the outputs at the end, and outputs whose
    call is not among ``items``."""
    pinned = {id(item) for item in _orphans(items)}
    for position, item in enumerate(reversed(items)):
        if position > 0 and not isinstance(item, CallOutput):
            break
        pinned.add(id(item))
        if not isinstance(item, CallOutput):
            break
    answered = {i.call_id for i in items if id(i) in pinned and isinstance(i, CallOutput)}
    calls = (item for item in items if isinstance(item, Call) and item.call_id in answered)
    return pinned | {id(call) for call in calls}


def _calls_of(context: Context, pinned: set[int]) -> list[Call]:
    """The calls of held turns that pinned outputs answer, the oldest first."""
    wanted = {item.call_id for item in _orphans(context.items) if id(item) in pinned}
    held = [call for entry in chain(context.parent) for call in reversed(_calls(entry))]
    return [call for call in reversed(held) if call.call_id in wanted]


def _calls(entry: Entry) -> list[Call]:
    items = (*entry.input_items, *entry.output_items)
    return [item for item in items if isinstance(item, Call)]


def _orphans(items: Sequence[Item]) -> list[CallOutput]:
    """Outputs among ``items`` whose call is not before them."""
    calls, orphans = set[str](), list[CallOutput]()
    for item in items:
        if isinstance(item, Call):
            calls.add(item.call_id)
        elif isinstance(item, CallOutput) and item.call_id not in calls:
            orphans.append(item)
    return orphans


# Cutting texts


def _with_shorter(
    context: Context, pinned: set[int], sizes: _Sizes, room: int
) -> tuple[Context, set[int]]:
    """Cut the longest of the pinned items until all of them fit into ``room`` tokens; where there
    is more to read than these, into half of it. Returns the ids of the new objects as well."""
    staying = [item for item in context.items if id(item) in pinned]
    if sizes.of(staying) <= room:
        return context, pinned
    alone = context.parent is None and len(staying) == len(context.items)
    fixed = sizes.of([item for item in staying if not _can_be_cut(item)])
    texts = [sizes.of_one(item) for item in staying if _can_be_cut(item)]
    most = _level(texts, (room if alone else room // 2) - fixed)
    items, cuts, still_pinned = list[Item](), list(context.cuts), set[int]()
    for item in context.items:
        kept = item
        if id(item) in pinned:
            if _can_be_cut(item) and sizes.of_one(item) > most:
                kept = _fitting(item, sizes, most)
                cuts.append(_sentence(item, kept))
            still_pinned.add(id(kept))
        items.append(kept)
    return replace(context, items=tuple(items), cuts=tuple(cuts)), still_pinned


def _level(sizes: Sequence[int], room: int) -> int:
    """The largest size to which each may be cut so that all together fit into ``room``."""
    left = max(room, 0)
    for position, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - position)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def _fitting(item: Item, sizes: _Sizes, most: int) -> Item:
    """``item`` cut in the middle until it has at most ``most`` tokens, or nothing but the note."""
    by_share = len(_text(item)) * most // max(sizes.of_one(item), 1)
    keep = min(by_share, most * _CHARS_PER_TOKEN)
    for _ in range(_ATTEMPTS):
        shorter = _cut(item, keep)
        if sizes.of_one(shorter) <= most:
            return shorter
        keep = keep * 3 // 4
    return _cut(item, 0)


def _cut(item: Item, keep: int) -> Item:
    """``item`` with ``keep`` characters of its text, from both ends, and a note between them."""
    text = _text(item)
    head, tail = (keep + 1) // 2, keep // 2
    note = f"\n[... {len(text) - keep} characters left out ...]\n"
    shorter = text[:head] + note + (text[-tail:] if tail else "")
    if isinstance(item, Message):
        part = TextPart(type=item.content[0].type, text=shorter)
        return replace(item, content=(part,))
    assert isinstance(item, CallOutput)
    return replace(item, output=shorter)


def _can_be_cut(item: Item) -> bool:
    return isinstance(item, CallOutput) or (isinstance(item, Message) and bool(item.content))


def _text(item: Item) -> str:
    assert isinstance(item, CallOutput | Message)
    return item.text if isinstance(item, Message) else item.output


def _sentence(item: Item, shorter: Item) -> str:
    before, after = len(_text(item)), len(_text(shorter))
    return f"truncation: a {item.type} of {before} characters was cut in the middle to {after}"


# Leaving out what is oldest


def _newest_turns(context: Context, room: int) -> list[Entry]:
    """The newest held turns that fit, the newest first; none that begins with an output whose
    call is gone."""
    kept: list[Entry] = []
    for entry in chain(context.parent):
        room -= entry.own_tokens
        if room < 0:
            break
        kept.append(entry)
    while kept and kept[-1].parent is not None and _orphans(kept[-1].input_items):
        kept.pop()
    return kept


def _is_whole(kept: Sequence[Entry]) -> bool:
    return kept[-1].parent is None


def _newest_items(
    items: Sequence[Item], staying: set[int], sizes: _Sizes, room: int
) -> tuple[Item, ...]:
    """``items`` without the oldest that need not stay, as many as have to go; with a call goes
    its output."""
    excess = sizes.of(items) - room
    gone: set[str] = set()
    kept = list[Item]()
    for item in items:
        follows = isinstance(item, CallOutput) and item.call_id in gone
        if id(item) not in staying and (excess > 0 or follows):
            excess -= sizes.of_one(item)
            if isinstance(item, Call):
                gone.add(item.call_id)
        else:
            kept.append(item)
    return tuple(kept)


def _rechained(entries: Sequence[Entry], renderer: Renderer) -> Entry:
    """Copies of ``entries``, the first of them at the start of a chain."""
    first = entries[0]
    ids, _ = renderer.input(
        first.input_items,
        Tail.START,
        generate=first.tail is not Tail.INPUT,
        options=first.header.options,
    )
    copy = replace(first, parent=None, input_ids=ids, num_tokens=len(ids) + len(first.output_ids))
    for entry in entries[1:]:
        copy = replace(entry, parent=copy, num_tokens=copy.num_tokens + entry.own_tokens)
    return copy
