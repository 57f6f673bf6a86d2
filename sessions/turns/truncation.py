"""``truncation: auto``: what is left of a context that does not fit.

What was asked first stays, and what is newest; between them the oldest goes, up to one of the
lines that lie half a window apart over all that was said. So the next many turns only add to what
is left, and a history that is resent is cut where it was cut before. Pure decisions over items
and their sizes.

Always true: no output stays without its call and no call without its output, in whichever turns
they are; what awaits an output stays; turns that stay keep their token ids, but for the input of
those that lost some of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from sessions.durable.compaction import standing
from sessions.durable.renderer import Renderer
from sessions.durable.transcript import (
    NOTHING,
    Entry,
    Header,
    LeftOut,
    Tail,
    by_model,
    chain,
    expanded,
)
from sessions.turns.shortening import Room, Shortening, Sizes
from tools_api.chat_format import TemplateOptions
from tools_api.items import Call, CallOutput, Compaction, Item, Message, Reasoning

_LATE_BEHIND_SUMMARY = (
    "compaction: left out the output of {!r}, whose call is in the summary; send what came late as "
    "a message"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Context:
    """The text that the model will read, split into what is held and what is new."""

    parent: Entry | None
    items: tuple[Item, ...]
    header: Header
    open_calls: frozenset[str]
    digest: bytes
    """Over all items as they came, those included that truncation leaves out."""
    left_out: LeftOut = NOTHING
    """The part left out of all that was said, this turn's input included."""
    cuts: tuple[str, ...] = ()
    """The cuts for this turn, a sentence for each item, and one for what was left out."""


def without_lost(
    parent: Entry | None, items: tuple[Item, ...]
) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """Those of ``items`` that a chain can take which was cut or summed up: no late output of a
    call that is gone there. And a sentence for each of these."""
    called = _called(expanded(items)) | (set() if parent is None else parent.open_calls)
    answered = {item.call_id for item in items if isinstance(item, CallOutput)}
    if called >= answered:
        return items, ()
    links = [(*link.input_items, *link.output_items) for link in chain(parent)]
    summed_up = any(map(_is_summary, (*items, *(item for link in links for item in link))))
    if not summed_up and (parent is None or parent.left_out == NOTHING):
        return items, ()
    called = called.union(*(_called(expanded(link)) for link in links))
    kept, cuts = list[Item](), list[str]()
    for item in items:
        if isinstance(item, CallOutput) and item.call_id not in called:
            cuts.append(
                _LATE_BEHIND_SUMMARY.format(item.call_id)
                if summed_up
                else f"truncation: left out the output of {item.call_id!r}, like its call"
            )
        else:
            kept.append(item)
    return tuple(kept), tuple(cuts)


def _is_summary(item: Item) -> bool:
    return isinstance(item, Compaction) and standing(item).summary_at is not None


def _called(items: Iterable[Item]) -> set[str]:
    return {item.call_id for item in items if isinstance(item, Call)}


def truncations(
    context: Context, renderer: Renderer, options: TemplateOptions, room: Room
) -> Iterator[Context]:
    """The contexts that may be left of ``context``, the longest first: the first that is as
    short as a cut leaves it (``Room.left_by_cut``) is to be taken. The last has no more than has
    to stay."""
    context = spelled_out(context)
    history = _History(context, Sizes(renderer, options, room), room)
    for start in history.starts():
        kept = history.kept(start)
        left_out = history.left_out(kept)
        rebuilt = _rebuilt(context, history.text.items, kept, left_out, renderer)
        cuts = history.text.sentences(kept) + _sentence(context.left_out, left_out)
        yield replace(rebuilt, left_out=left_out, cuts=(*context.cuts, *cuts))


def spelled_out(context: Context) -> Context:
    """``context`` with what its compactions stand for in their places."""
    whole = reversed(list(chain(context.parent)))
    parent: Entry | None = None
    for entry in whole:
        inputs = expanded(entry.input_items)
        if inputs is entry.input_items and parent is entry.parent:
            parent = entry
        else:
            parent = replace(entry, parent=parent, input_items=inputs)
    items = expanded(context.items)
    if parent is context.parent and items is context.items:
        return context
    return replace(context, parent=parent, items=items)


class _History:
    """A history item by item: what of it has to stay, and where it may be cut."""

    def __init__(self, context: Context, sizes: Sizes, room: Room) -> None:
        self._before = context.left_out
        self._items, self._written = _flat(context)
        self._by_model = list(map(by_model, self._items))
        header = len(context.header.ids)
        beside_header = max(room.max_tokens - header, 0)
        self._most = room.left_by_cut(header) - header
        self.text = Shortening(self._items, sizes)
        self._task = self._first_asked(beside_header // 4)
        self._shorten_turns(beside_header)
        self._newest = self._newest_turn(context.open_calls)
        self.text.fit(sorted(self._task | self._newest), beside_header - room.reply_tokens)
        # Nothing of this turn alone is in it, as the room for its reply: lines stay where they are.
        self._step = max((beside_header * 3 // 4 - self.text.size(self._task)) // 2, 1)

    # What has to stay

    def _first_asked(self, room: int) -> set[int]:
        """Places of the first user message, and of the newest of the other messages before the
        model's first word that have ``room`` together."""
        if self._before.behind:
            return set(range(self._before.behind))
        users = (place for place, item in enumerate(self._items) if _is_of_user(item))
        first = next(users, None)
        if first is None:
            return set()
        task = {first}
        for place in reversed(range(self._first_answer)):
            if place == first:
                continue
            room -= self.text.size([place])
            if room < 0 and len(task) > 1:
                break
            task.add(place)
        return task

    @property
    def _first_answer(self) -> int:
        """The place of the model's first word; 0 if it has said nothing."""
        return self._by_model.index(True) if any(self._by_model) else 0

    def _shorten_turns(self, room: int) -> None:
        """Cut what is too long of each turn's input, whichever turn is the newest now: in
        ``room`` tokens the first user message has a quarter, what a turn ends with a half."""
        inputs = [turn for turn in self._runs() if not self._by_model[turn[0]]]
        if not any(self._by_model):
            ends = sorted(self._task.union(*map(self._end, inputs)))
            self.text.fit(ends, self._most if len(ends) == len(self._items) else room // 2)
        else:
            first = [p for p in sorted(self._task) if _is_of_user(self._items[p])][:1]
            self.text.fit(first, room // 4)
            self.text.fit(sorted(self._task.difference(first)), room // 4)
            for turn in inputs:
                self.text.fit(sorted(self._end(turn) - self._task), room // 2)
        for turn in inputs:
            for place in set(turn) - self._end(turn) - self._task:
                self.text.fit([place], room // 4)

    def _newest_turn(self, open_calls: frozenset[str]) -> set[int]:
        """Places of what the history ends with, of the calls that this answers, and of those
        that await their outputs."""
        runs = list(self._runs())
        newest = self._end(runs[-1]) if runs else set()
        awaited = set(open_calls)
        for place in reversed(range(len(self._items))):
            item = self._items[place]
            if place in newest and isinstance(item, CallOutput):
                awaited.add(item.call_id)
            elif isinstance(item, Call) and item.call_id in awaited:
                awaited.discard(item.call_id)
                newest.add(place)
        return newest

    def _runs(self) -> Iterator[list[int]]:
        """Places by turns, now what the model was told, now what it said."""
        for _, run in groupby(range(len(self._items)), self._by_model.__getitem__):
            yield list(run)

    def _end(self, run: Sequence[int]) -> set[int]:
        """The end of what the model was told at once: outputs, and what is last. All that it
        said."""
        if self._by_model[run[0]]:
            return set(run)
        outputs = {place for place in run if isinstance(self._items[place], CallOutput)}
        return outputs | {run[-1]}

    # What goes

    def starts(self) -> Iterator[int]:
        """The places from which on all may stay, ascending: where the history crosses a line,
        and its end."""
        sizes = [self._own_size(place) for place in range(len(self._items))]
        before = list(accumulate(sizes, initial=0))
        has_to_stay = self.text.size(self._task | self._newest)
        whole = self.text.size(self._task) + before[-1]
        crossed = -1
        for place, gone in enumerate(before[:-1]):
            line = (self._before.tokens + gone) // self._step
            if line == crossed or not self._may_part(place):
                continue
            crossed = line
            # What stands in one turn takes less than each of its items on its own.
            if max(whole - gone, has_to_stay) * 3 // 4 <= self._most:
                yield place
        yield len(self._items)

    def _own_size(self, place: int) -> int:
        return 0 if place in self._task else self.text.size([place])

    def _may_part(self, place: int) -> bool:
        """Whether what stands before ``place`` may go alone: what a model says goes with what it
        was told, as far as there is one answer to that."""
        if place == 0 or not self._by_model[place]:
            return True
        if not self._by_model[place - 1] or self._written[place]:
            return False
        last, item = self._items[place - 1], self._items[place]
        message = isinstance(item, Message) and not isinstance(last, Reasoning)
        return message or isinstance(item, Reasoning)

    def kept(self, start: int) -> list[int]:
        """Places of what stays if the newest begins at ``start``."""
        stays = self._task | self._newest
        called, kept = set[str](), list[int]()
        for place, item in enumerate(self._items):
            if place < start and place not in stays:
                continue
            if isinstance(item, Call):
                called.add(item.call_id)
            elif isinstance(item, CallOutput) and item.call_id not in called:
                continue
            kept.append(place)
        return kept

    def left_out(self, kept: Sequence[int]) -> LeftOut:
        """The part that is missing in all if only this is kept."""
        gone = sorted(set(range(len(self._items))).difference(kept))
        if not gone:
            return self._before
        answers = [run[0] for run in self._runs() if self._by_model[run[0]]]
        turns = max(len(set(answers).intersection(gone)), 1)
        task = sorted(self._task)
        return LeftOut(
            turns=self._before.turns + turns,
            tokens=self._before.tokens + self.text.size(gone),
            behind=len(task) if list(kept[: len(task)]) == task else 0,
        )


def _flat(context: Context) -> tuple[list[Item], list[bool]]:
    """The items of a history, and which of them the model wrote here, so that their token ids are
    held."""
    items, written = list[Item](), list[bool]()
    for entry in reversed(list(chain(context.parent))):
        items += (*entry.input_items, *entry.output_items)
        written += [False] * len(entry.input_items) + [True] * len(entry.output_items)
    return [*items, *context.items], written + [False] * len(context.items)


def _is_of_user(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _sentence(before: LeftOut, now: LeftOut) -> tuple[str, ...]:
    if now == before:
        return ()
    turns, tokens = now.turns - before.turns, now.tokens - before.tokens
    so_far = f"; {_counted(now.turns, now.tokens)} so far" if before != NOTHING else ""
    return (f"truncation: left out {_counted(turns, tokens)} to fit the context{so_far}",)


def _counted(turns: int, tokens: int) -> str:
    return f"{turns} turn{'' if turns == 1 else 's'} of {tokens} tokens"


def _rebuilt(
    context: Context,
    items: Sequence[Item],
    kept: Sequence[int],
    left_out: LeftOut,
    renderer: Renderer,
) -> Context:
    """``context`` of the items at the places ``kept``. An entry stays if all that the model said
    there does; what else is kept of others leads the input of the next one that stays."""
    stays = set(kept)
    at, parent = 0, None
    carried: list[Item] = []
    before_stayed = True
    for entry in reversed(list(chain(context.parent))):
        told = range(at, at + len(entry.input_items))
        said = range(told.stop, told.stop + len(entry.output_items))
        at = said.stop
        inputs = [items[place] for place in told if place in stays]
        outputs = [items[place] for place in said if place in stays]
        if said:
            entry_stays = len(outputs) == len(said)
        else:
            entry_stays = bool(inputs) or (before_stayed and not told)
        if not entry_stays:
            carried += inputs + outputs
        elif before_stayed and not carried and _same(inputs, entry.input_items):
            parent = entry if parent is entry.parent else _behind(parent, entry, left_out)
        else:
            parent = _retold(parent, entry, (*carried, *inputs), left_out, renderer)
            carried = []
        before_stayed = entry_stays
    if carried and context.parent is not None:
        parent = _told_alone(parent, context.parent, tuple(carried), left_out, renderer)
    new = [items[place] for place in range(at, len(items)) if place in stays]
    return replace(context, parent=parent, items=tuple(new))


def _same(inputs: Sequence[Item], before: Sequence[Item]) -> bool:
    return len(inputs) == len(before) and all(map(_is, inputs, before))


def _is(one: Item, other: Item) -> bool:
    return one is other


def _behind(parent: Entry | None, entry: Entry, left_out: LeftOut) -> Entry:
    """An entry behind another parent."""
    before = 0 if parent is None else parent.num_tokens
    return replace(entry, parent=parent, num_tokens=before + entry.own_tokens, left_out=left_out)


def _told_alone(
    parent: Entry | None,
    entry: Entry,
    inputs: tuple[Item, ...],
    left_out: LeftOut,
    renderer: Renderer,
) -> Entry:
    """The part that is kept of ``entry`` and of those before it, none of whose outputs stays: no
    part of what is new."""
    silent = replace(entry, output_items=(), output_ids=entry.output_ids[:0], tail=Tail.INPUT)
    return _retold(parent, silent, inputs, left_out, renderer)


def _retold(
    parent: Entry | None,
    entry: Entry,
    inputs: tuple[Item, ...],
    left_out: LeftOut,
    renderer: Renderer,
) -> Entry:
    """An entry behind another parent and with other input."""
    asked = not entry.tail.is_input
    ids, tail = renderer.input(
        inputs,
        Tail.START if parent is None else parent.tail,
        generate=asked,
        options=entry.header.options,
    )
    tail = entry.tail if asked or not inputs else tail
    told = replace(entry, input_items=inputs, input_ids=ids, tail=tail)
    return _behind(parent, told, left_out)
