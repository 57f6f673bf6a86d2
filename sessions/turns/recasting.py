"""Recasting: what stays of a context that has grown too long, what is cleared, what is summarised.

Old tool results go first, a note in their place; then older turns, into one summary. What a user
asked first stays, as do the user's newer messages up to a share, and the newest turns. Pure
decisions over items and their sizes; leaving turns out, the last resort and the smallest case, is
``sessions.turns.truncation``. Knows neither chains nor tokens.

Always true: a call and its output stay, are cleared or are summarised together; items that stay
are the same objects in the same order; what was decided once is decided again of the same items.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tools_api.call_order import by_model
from tools_api.items import (
    Call,
    CallOutput,
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    StandsFor,
    TextPart,
    with_output,
)
from tools_api.loaded_tools import standing_changes
from tools_api.tool_definitions import defines

_NOTE = "[cleared: output of {}, {} tokens]"
_IS_NOTE = re.compile(r"\[cleared: output of .{1,512}, \d{1,12} tokens\]$", re.DOTALL)
_SUMMARY = "Summary of the conversation up to here, which is left out:\n\n{}"
_NO_ARGUMENTS = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules for recasting a context."""

    clears: bool = True
    summarises: bool = True
    keeps_newest: bool = True
    """The last turn stays as it is in any case; else only if it has room."""
    keeps_turns: bool = True
    """The newest turns stay, as many as have room; else only what users said does."""
    keeps_uses: int | None = None
    """Clear all outputs but those of so many newest calls; None: as few as will do."""
    exempt: frozenset[str] = frozenset()
    """Tools whose outputs are not cleared."""
    clears_inputs: bool | frozenset[str] = False
    """Arguments of calls are cleared with their outputs: of all tools, or of these."""
    least: int = 0
    """Tokens: what clears fewer is not done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecastRoom:
    """How much is to be left, in tokens beside the header."""

    target: int
    summary: int
    """Most that a summary may take."""
    note: int
    """About what a note takes that stands for an output: smaller ones are not worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Places in the items; those in neither tuple stay."""

    cleared: tuple[int, ...] = ()
    """Outputs of tools that are cleared."""
    summarised: tuple[int, ...] = ()
    newest: int
    """Where what stays of the newest turns begins."""
    saves: int = 0
    """Tokens that the cut saves, about."""


def decide(
    items: Sequence[Item],
    sizes: Sequence[int],
    room: RecastRoom,
    rules: Rules,
    *,
    summary_at: int | None = None,
    told: int | None = None,
) -> Decision | None:
    """Decide on the items. None: nothing would be gained.

    Args:
        sizes: tokens of each item on its own.
        summary_at: which of the items is an earlier summary.
        told: whoever writes the summary sees so many of the items; None: all.
    """
    history = _History(items, sizes, summary_at, room.note)
    for_newest = room.target - room.summary - history.size_of_users(room.target // 4)
    for_newest -= history.size_of_tools(len(items))
    newest = history.newest(
        max(for_newest, room.target // 4), rules, len(items) if told is None else told
    )
    cleared = history.to_clear(newest, rules, sum(sizes) - room.target)
    saved = sum(sizes[place] - room.note for place in cleared)
    enough = sum(sizes) - saved <= room.target or not rules.summarises
    if enough and rules.keeps_newest:
        worth = bool(cleared) and saved >= rules.least
        return Decision(cleared=cleared, newest=newest, saves=saved) if worth else None
    users = history.users(newest, room.target // 4)
    gone = tuple(place for place in range(newest) if place not in users)
    saved = sum(sizes[place] for place in gone) - room.summary - history.size_of_tools(newest)
    if not gone or (saved <= 0 and rules.keeps_newest):
        return None
    return Decision(summarised=gone, newest=newest, saves=saved)


def without_summary(
    items: Sequence[Item], sizes: Sequence[int], room: RecastRoom, rules: Rules
) -> Decision:
    """Decide on the items where there is no summary: as many outputs are cleared as help, also
    where it was to make that unnecessary."""
    alone = replace(rules, clears=True, summarises=False, keeps_newest=True, least=0)
    found = decide(items, sizes, room, alone)
    return found or Decision(newest=0)


def recast(
    items: Sequence[Item],
    sizes: Sequence[int],
    decision: Decision,
    rules: Rules,
    *,
    summary: str | None,
    summary_at: int | None = None,
) -> StandsFor:
    """The items that are left, those that bring tools or a configuration as one each. ``summary``:
    None only where nothing is summarised."""
    cleared, gone = set(decision.cleared), set(decision.summarised)
    tools = standing_changes([item for place, item in enumerate(items) if place in gone])
    emptied = _to_empty(items, cleared, rules.clears_inputs)
    kept, at = list[Item](), None
    for place, item in enumerate(items):
        if place == decision.newest and gone:
            kept += tools
            at = len(kept)
            kept.append(summary_message(summary or ""))
        if place in gone:
            continue
        if place == summary_at and not gone:
            at = len(kept)
        if place in cleared:
            kept.append(_noted(item, sizes[place]))
        else:
            kept.append(emptied.get(place, item))
    if gone and at is None:  # nothing of the newest stays
        kept += tools
        at = len(kept)
        kept.append(summary_message(summary or ""))
    return StandsFor(items=tuple(kept), summary_at=at)


def summary_message(text: str) -> Message:
    """A summary as the model reads it."""
    part = TextPart(type="input_text", text=_SUMMARY.format(text))
    return Message(role="user", content=(part,))


def sample_note() -> Item:
    """A note about cleared outputs, as long as most are."""
    id_ = "call_0123456789abcdef01234567"
    return FunctionCallOutput(call_id=id_, output=_NOTE.format(id_, 1000))


def is_cleared(item: Item) -> bool:
    """Whether an output is the note of one."""
    return isinstance(item, CallOutput) and _IS_NOTE.match(item.output) is not None


def cuts(items: Sequence[Item]) -> list[int]:
    """Places before which a history may be parted, ascending: no call stands on one side and its
    output on the other, and nothing that the model said at once is torn apart."""
    at: dict[str, int] = {}
    calls = list[int]()
    for place, item in enumerate(items):
        if isinstance(item, Call):
            at[item.call_id] = place
        calls.append(at.get(item.call_id, place) if isinstance(item, CallOutput) else place)
    earliest, found = len(items), list[int]()
    for place in reversed(range(len(items))):
        earliest = min(earliest, calls[place])
        torn = place > 0 and by_model(items[place]) and by_model(items[place - 1])
        if earliest >= place and not torn:
            found.append(place)
    return found[::-1]


class _History:
    """Items and what may be done with them."""

    def __init__(
        self, items: Sequence[Item], sizes: Sequence[int], summary_at: int | None, note: int
    ) -> None:
        self._items = items
        self._sizes = sizes
        self._summary_at = summary_at
        self._note = note

    def newest(self, room: int, rules: Rules, told: int) -> int:
        """Where the newest turns begin that stay: as many as have ``room``, the last one always,
        and all that whoever sums up does not see."""
        if not rules.keeps_turns:
            return told
        places = [place for place in cuts(self._items) if place <= told]
        newest = places[-1] if places and rules.keeps_newest else told
        for place in reversed(places):
            if sum(self._sizes[place:]) > room:
                break
            newest = place
        return newest

    def size_of_users(self, room: int) -> int:
        """Tokens of what stays of users' messages, wherever they stand."""
        return sum(self._sizes[place] for place in self.users(len(self._items), room))

    def size_of_tools(self, end: int) -> int:
        """Tokens of the items before ``end`` that bring tools: these stay in any case."""
        return sum(self._sizes[place] for place in range(end) if defines(self._items[place]))

    def users(self, newest: int, room: int) -> set[int]:
        """Places before the newest turns of what users said: the first, and of the others the
        newest that have ``room`` together."""
        said = [place for place in range(newest) if self._is_told(place)]
        kept = set(said[:1])
        for place in reversed(said[1:]):
            room -= self._sizes[place]
            if room < 0:
                break
            kept.add(place)
        return kept

    def _is_told(self, place: int) -> bool:
        item = self._items[place]
        told = isinstance(item, Message) and item.role != "assistant"
        return told and place != self._summary_at

    def to_clear(self, newest: int, rules: Rules, surplus: int) -> tuple[int, ...]:
        """Outputs to clear, the oldest first, until ``surplus`` tokens are gone."""
        if not rules.clears:
            return ()
        outputs = [place for place, item in enumerate(self._items) if isinstance(item, CallOutput)]
        if rules.keeps_uses is not None:
            keep = rules.keeps_uses
            outputs, surplus = outputs[: max(len(outputs) - keep, 0)], sum(self._sizes) + 1
        else:
            outputs = [place for place in outputs if place < newest]
        found = list[int]()
        for place in outputs:
            if surplus <= 0 and sum(self._sizes[p] for p in found) >= rules.least:
                break
            if self._is_worth_clearing(place, rules):
                found.append(place)
                surplus -= self._sizes[place] - self._note
        return tuple(found)

    def _is_worth_clearing(self, place: int, rules: Rules) -> bool:
        item = self._items[place]
        assert isinstance(item, CallOutput)
        if is_cleared(item) or defines(item) or self._sizes[place] <= self._note:
            return False
        return self._name_of(place) not in rules.exempt

    def _name_of(self, place: int) -> str:
        item = self._items[place]
        assert isinstance(item, CallOutput)
        for earlier in reversed(self._items[:place]):
            if isinstance(earlier, Call) and earlier.call_id == item.call_id:
                return earlier.full_name
        return ""


def _to_empty(
    items: Sequence[Item], outputs: set[int], clears: bool | frozenset[str]
) -> dict[int, Item]:
    """The calls that these outputs answer without their arguments, by place."""
    if not clears:
        return {}
    ids = {item.call_id for place in outputs if isinstance(item := items[place], CallOutput)}
    found = dict[int, Item]()
    for place, item in enumerate(items):
        if not isinstance(item, Call) or item.call_id not in ids:
            continue
        if clears is not True and item.full_name not in clears:
            continue
        if isinstance(item, FunctionCall):
            found[place] = replace(item, arguments=_NO_ARGUMENTS)
        elif isinstance(item, CustomToolCall):
            found[place] = replace(item, input="")
        else:
            found[place] = item.emptied()
    return found


def _noted(item: Item, tokens: int) -> Item:
    assert isinstance(item, CallOutput)
    return with_output(item, _NOTE.format(item.call_id, tokens))
