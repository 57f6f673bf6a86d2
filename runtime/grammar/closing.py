"""A short legal way to finish a constrained output from any point of it.

The grammar is a black box here: a matcher that tells forced tokens, a mask and whether it
accepts. The search walks a copy of it, closing what is open before opening anything; where
nothing closes (a number, a pattern, an enum) it looks for the nearest point where something
does; then it tries other turns at its choice points. What it finds is legal; that nothing
shorter exists is not promised.

Knows llguidance's matcher. Knows no limits, no sequences and no sampling; nor the time: it
pauses after every step, and its caller decides when it goes on.

Always true: an answer ends with the end-of-turn token, and depends on the matcher's token
history alone.
"""

import heapq
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import llguidance
import numpy as np

from runtime.grammar.closing_tables import ClosingTables, Way, allowed
from runtime.grammar.framing import Framing
from runtime.grammar.mask_bits import MaskRow, mask_words
from runtime.grammar.plain_closing import PlainClosing
from runtime.grammar.schemas import reading_hints

_Result = TypeVar("_Result")
Work = Generator[None, None, _Result]
"""Work in pieces: it pauses after each, and returns its result at the end."""

_FEW_TOKENS = 32
_MAX_WAYS = 4
_MAX_HINTS = 256
_MAX_KEY_TOKENS = 24
_MAX_KNOWN = 512
_MAX_KNOWN_TOKENS = 64
_MAX_RESUMED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much a search may cost, in steps: so the answer depends on the grammar alone."""

    steps: int
    """Most tokens that are tried."""
    improving_steps: int
    """How many of them after a first answer, for a shorter one."""
    whole_values: int = 0
    """Places at which whole values of the schemas are tried."""


THOROUGH = Effort(steps=4000, improving_steps=80, whole_values=16)
"""Once per grammar, off the engine's loop."""
QUICK = Effort(steps=300, improving_steps=20)
"""The effort of a search between two tokens of a sequence."""


def complete(work: Work[_Result]) -> _Result:
    """Do all of a search's work now."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _Result = end.value
            return result


@dataclass(slots=True)
class _Left:
    """The work that is left to a search: tokens fed and masked, whole values tried."""

    steps: int
    values: int = 0


@dataclass(frozen=True, slots=True)
class _Choice:
    """A point of a walk where other ways were open."""

    matcher: llguidance.LLMatcher
    position: int
    others: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class _Walk:
    tokens: Way
    choices: tuple[_Choice, ...]
    complete: bool


@dataclass(frozen=True, slots=True, order=True)
class _Node:
    """A state on the way to a point that closes."""

    cost: int
    order: int
    way: Way = field(compare=False)
    matcher: llguidance.LLMatcher = field(compare=False)
    row: MaskRow = field(compare=False)
    goal: bool = field(compare=False)


class ClosingSearch:
    """The search for one grammar. ``finding`` changes nothing and may run in several threads;
    ``finding_behind`` remembers and may not."""

    def __init__(self, tables: ClosingTables) -> None:
        """Knows nothing of its grammar yet; see ``preparing``."""
        self._tables = tables
        self._end_of_turn = tables.tokenizer.end_of_turn_id
        self._row_words = mask_words(tables.tokenizer.vocab_size)
        self._quote = self._encode('"')[-1]
        self._required: tuple[bytes, ...] = ()
        self._hints: tuple[Way, ...] = ()
        self._values: tuple[bytes, ...] = ()
        self._framing = Framing(tables.tokenizer, "")
        self._plain: PlainClosing | None = None
        """Where a client's own grammar binds plain text."""
        self._known: OrderedDict[Way, Way] = OrderedDict()

    def preparing(self, lark: str, values: Sequence[str] = ()) -> Work[None]:
        """Read what the grammar's schemas suggest. Without it the search finds less.

        Args:
            values: short values of the schemas, as texts.
        """
        self._values = tuple(value.encode("utf-8", "replace") for value in values)
        self._framing = Framing(self._tables.tokenizer, lark)
        if "%lark" in lark:
            self._plain = PlainClosing(self._tables.tokenizer, lark)
        hints = yield from reading_hints(lark)
        self._required = hints.required
        tails = dict.fromkeys(s[i:] for s in hints.samples for i in range(len(s)))
        ends: list[Way] = []
        for tail in tails:
            yield
            ends.append(self._encode(tail))
        # Wherever a string stands in its pattern, one of them may finish it: fewest first.
        self._hints = tuple(sorted(ends, key=_way_order)[:_MAX_HINTS])

    def find(self, matcher: llguidance.LLMatcher, *, limit: int, effort: Effort) -> Way | None:
        """The shortest ending; the work of ``finding`` in one go."""
        return complete(self.finding(matcher, limit=limit, effort=effort))

    def finding(
        self, matcher: llguidance.LLMatcher, *, limit: int, effort: Effort
    ) -> Work[Way | None]:
        """Tokens that end the sequence legally from the matcher's state, end-of-turn included.

        Args:
            matcher: not changed.
            limit: most tokens the answer may have.

        Returns:
            None if the search found no answer of at most ``limit`` tokens.
        """
        left = _Left(effort.steps)
        # A greedy walk may go round in circles; half is kept for its other turns.
        first = _Left(effort.steps // 2, effort.whole_values)
        walk = yield from self._walk(matcher.deep_copy(), (), limit, first)
        if walk.complete and effort.whole_values:
            # A whole value is short in characters; long pieces may need fewer tokens.
            plain = _Left(effort.steps // 8)
            shorter = len(walk.tokens) - 1
            found = yield from self._walk(matcher.deep_copy(), (), shorter, plain)
            walk = found if found.complete else walk
        left.steps -= effort.steps // 2 - first.steps
        best = walk.tokens if walk.complete else None
        if best is not None:
            left.steps = min(left.steps, effort.improving_steps)
        pending = list(reversed(walk.choices))
        while pending and left.steps > 0:
            choice = pending.pop()
            for way in choice.others:
                longest = limit if best is None else len(best) - 1
                start = (*walk.tokens[: choice.position], *way)
                branch = choice.matcher.deep_copy()
                if len(start) >= longest or not branch.consume_tokens(list(way)):
                    continue
                found = yield from self._walk(branch, start, longest, left)
                if found.complete:
                    walk, best = found, found.tokens
                    pending = list(reversed(found.choices))
                    break
        if best is None and self._plain is not None:
            best = yield from self._plain.finding(matcher, limit=limit, steps=effort.steps)
        return best

    def finding_behind(
        self, tokens: Way, matcher: llguidance.LLMatcher, *, limit: int, effort: Effort
    ) -> Work[Way | None]:
        """``finding``, remembering what it found near the beginning: sequences of one grammar
        mostly begin alike, with the name of one of a few tools.

        Args:
            tokens: all that ``matcher`` was fed.
        """
        if len(tokens) > _MAX_KNOWN_TOKENS:
            return (yield from self.finding(matcher, limit=limit, effort=effort))
        known = self._known.pop(tokens, None)
        if known is None or len(known) > limit:
            known = yield from self.finding(matcher, limit=limit, effort=effort)
        if known is not None:
            self._known[tokens] = known
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return known

    def repairs(self, token: int) -> tuple[Way, ...]:
        """Texts that may finish a character, an escape or a number that ``token`` left half
        written."""
        last = self._tables.tokenizer.token_bytes(token)[-1:]
        return self._tables.repairs.get(last[0], ()) if last else ()

    def resumed(self, plan: Way, token: int) -> Iterator[Way]:
        """The rests of a plan of which ``token`` may have begun a token, as ``,`` begins ``, ``:
        that token's other bytes, and what follows it."""
        tables = self._tables
        data = tables.tokenizer.token_bytes(token)
        for index, planned in enumerate(plan[:_MAX_RESUMED]):
            piece = tables.tokenizer.token_bytes(planned)
            for size in range(1, len(piece)):
                missing = [piece[at : at + 1] for at in range(size, len(piece))]
                if data.endswith(piece[:size]) and all(map(tables.of_bytes.__contains__, missing)):
                    yield (*map(tables.of_bytes.__getitem__, missing), *plan[index + 1 :])

    def behind(self, plan: Way, tokens: Sequence[int]) -> Way | None:
        """The rest of a plan whose beginning ``tokens`` spell with other tokens: a token that they
        spell in part is ended byte by byte. None where they spell something else."""
        tables = self._tables
        spelt = b"".join(map(tables.tokenizer.token_bytes, tokens))
        for index, planned in enumerate(plan):
            if not spelt:
                return plan[index:]
            piece = tables.tokenizer.token_bytes(planned)
            if spelt.startswith(piece):
                spelt = spelt[len(piece) :]
                continue
            missing = [piece[at : at + 1] for at in range(len(spelt), len(piece))]
            if not piece.startswith(spelt) or not all(map(tables.of_bytes.__contains__, missing)):
                return None
            return (*map(tables.of_bytes.__getitem__, missing), *plan[index + 1 :])
        return None

    def _walk(
        self, matcher: llguidance.LLMatcher, start: Way, limit: int, left: _Left
    ) -> Work[_Walk]:
        """Go on greedily from ``matcher``, which is fed, for at most ``limit`` tokens."""
        row = np.zeros(self._row_words, dtype=np.int32)
        tokens = list(start)
        choices: list[_Choice] = []
        while len(tokens) < limit and left.steps > 0 and not matcher.is_error():
            if matcher.is_accepting():
                ended = bool(tokens) and tokens[-1] in self._tables.tokenizer.end_of_turn_ids
                end = () if ended else (self._end_of_turn,)
                return _Walk((*tokens, *end), tuple(choices), complete=True)
            run = matcher.compute_ff_tokens()
            if run:
                tokens += run
                matcher.consume_tokens(run)
                continue
            left.steps -= 1
            yield
            _fill_mask(matcher, row)
            whole = self._whole_value(matcher, row, tokens, left)
            ways: list[Way] = [
                *whole,
                *self._tags(matcher, row),
                *((token,) for token in self._closers(row)),
            ]
            if not ways:
                ways = yield from self._ways_to_closers(
                    matcher, row, tokens, limit - len(tokens), left
                )
            if not ways:
                break
            if len(ways) > 1:
                choices.append(_Choice(matcher.deep_copy(), len(tokens), tuple(ways[1:])))
            tokens += ways[0]
            matcher.consume_tokens(list(ways[0]))
        return _Walk(tuple(tokens), tuple(choices), complete=False)

    def _tags(self, matcher: llguidance.LLMatcher, row: MaskRow) -> list[Way]:
        """Tags of calls that are no JSON: what closes something here, or is needed next."""
        if self._framing.is_empty:
            return []
        return self._framing.ways(matcher, row, in_text=bool(allowed(row, self._tables.letters, 1)))

    def _closers(self, row: MaskRow) -> Way:
        """The tokens of structure that the mask allows, most closing first."""
        tables = self._tables
        quotes = allowed(row, tables.quotes, 1)
        separators = allowed(row, tables.separators, _MAX_WAYS)
        if allowed(row, tables.letters, 1) or (quotes and separators):
            # Inside a string: outside no letter is legal, nor a quote where a comma is.
            return allowed(row, tables.closes_string, _MAX_WAYS)
        if found := allowed(row, tables.structure, _MAX_WAYS) or separators:
            return found
        openers = quotes + allowed(row, tables.brackets, 2)
        # Where a value starts it may as well be a number or a word. Second, because a string
        # of digits looks the same, and there the quote is the end.
        return openers and openers + allowed(row, tables.literals, _MAX_WAYS)

    def _whole_value(
        self, matcher: llguidance.LLMatcher, row: MaskRow, tokens: Sequence[int], left: _Left
    ) -> list[Way]:
        """The rest of a short value, where one may stand here or has begun already."""
        if not left.values or allowed(row, self._tables.letters, 1):
            return []
        left.values -= 1
        typed = b"".join(map(self._tables.tokenizer.token_bytes, tokens[-_MAX_KEY_TOKENS:]))
        for value in self._values:
            for begun in range(min(len(typed), len(value) - 1), -1, -1):
                if typed.endswith(value[:begun]):
                    rest = self._encode(value[begun:].decode("utf-8", "replace"))
                    if matcher.validate_tokens(list(rest)) == len(rest):
                        return [rest]
        return []

    def _encode(self, text: str) -> Way:
        return tuple(self._tables.tokenizer.spell(text))

    def _hinted_ways(self, matcher: llguidance.LLMatcher, tokens: Sequence[int]) -> list[Way]:
        """Ways that the schemas suggest: a required key, or the tail of a matching string."""
        ways: list[Way] = []
        typed = b"".join(map(self._tables.tokenizer.token_bytes, tokens[-_MAX_KEY_TOKENS:]))
        _, quote, start = typed.rpartition(b'"')
        for name in self._required if quote else ():
            if name.startswith(start):
                key = self._encode(name[len(start) :].decode() + '":')
                if matcher.validate_tokens(list(key)) == len(key):
                    return [key]
        for hint in self._hints:
            if matcher.validate_tokens([*hint, self._quote]) == len(hint) + 1:
                ways.append(hint)
                if len(ways) == _MAX_WAYS:
                    break
        return ways

    def _ways_to_closers(
        self,
        matcher: llguidance.LLMatcher,
        row: MaskRow,
        before: Sequence[int],
        limit: int,
        left: _Left,
    ) -> Work[list[Way]]:
        """The shortest ways found to a point where the output can close or is forced on.

        Uniform-cost search. A token that leaves the mask as it was, or gives the mask that
        a sibling gives, is taken to lead nowhere new; if that leaves nothing, a length is
        being counted, and long pieces are fed until the mask changes.
        """
        heap = [_Node(0, 0, (), matcher, row.copy(), False)]
        order = 0
        while left.steps > 0:
            node = heapq.heappop(heap)
            if node.goal:
                others = sorted(other for other in heap if other.goal)
                return [other.way for other in (node, *others)][:_MAX_WAYS]
            hinted = self._hinted_ways(node.matcher, (*before, *node.way))
            if hinted or node.cost >= limit:
                return [node.way + hint for hint in hinted]
            seen = {node.row.tobytes()}
            for token in self._candidates(node.row):
                order += 1
                left.steps -= 1
                yield
                child = self._child(node, (token,), order)
                if child is None or (not child.goal and child.row.tobytes() in seen):
                    continue
                seen.add(child.row.tobytes())
                heapq.heappush(heap, child)
                if child.goal and child.cost == node.cost + 1:
                    break  # nothing shorter is left
            if not heap:
                fed = yield from self._feed_long_pieces(node, limit - node.cost, left)
                left.steps -= bool(fed)
                child = self._child(node, fed, order) if fed else None
                if child is None:
                    return []
                heap = [child]
        return []

    def _child(self, node: _Node, fed: Way, order: int) -> _Node | None:
        """The node behind ``fed`` and the run it forces; None if that is not legal."""
        matcher = node.matcher.deep_copy()
        if not matcher.consume_tokens(list(fed)):
            return None
        way = (*node.way, *fed, *matcher.compute_ff_tokens())
        matcher.consume_tokens(list(way[len(node.way) + len(fed) :]))
        row = np.zeros_like(node.row)
        _fill_mask(matcher, row)
        if matcher.is_error():
            return None
        goal = matcher.is_accepting() or bool(self._tags(matcher, row) or self._closers(row))
        return _Node(len(way), order, way, matcher, row, goal)

    def _feed_long_pieces(self, node: _Node, limit: int, left: _Left) -> Work[Way]:
        """The longest allowed piece again and again, until the mask changes."""
        matcher, row = node.matcher.deep_copy(), node.row.copy()
        fed: list[int] = []
        while len(fed) < limit and left.steps > 0 and np.array_equal(row, node.row):
            piece = next(iter(self._candidates(row)), None)
            if piece is None or not matcher.consume_token(piece):
                return ()
            left.steps -= 1
            yield
            fed.append(piece)
            _fill_mask(matcher, row)
        return tuple(fed)

    def _candidates(self, row: MaskRow) -> Iterator[int]:
        """Tokens that may lead on, longest first: all of a narrow mask, else some of each
        kind."""
        if int(np.bitwise_count(row).sum()) <= _FEW_TOKENS:
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            tokens = [int(t) for t in np.flatnonzero(bits) if int(t) != self._end_of_turn]
        else:
            tables = self._tables
            tokens = [t for table in tables.long_pieces for t in allowed(row, table, 1)]
            for table, count in zip(tables.single_bytes, (1, 1, 10, 33), strict=True):
                tokens += allowed(row, table, count)
            if not tokens:
                # Half a character or an escape leads round in circles where plain text is
                # legal as well.
                tokens = list(allowed(row, tables.other_pieces, 2))
        return iter(sorted(dict.fromkeys(tokens), key=self._tables.candidate_order))


def _way_order(way: Way) -> tuple[int, Way]:
    return len(way), way


def _fill_mask(matcher: llguidance.LLMatcher, row: MaskRow) -> None:
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
