"""A short legal way to finish a constrained output from any point of it.

The grammar is a black box here: a matcher that tells forced tokens, a mask and whether it
accepts. The search walks a copy of it, closing what is open before opening anything; where
nothing closes (a number, a pattern, an enum) it looks for the nearest point where something
does; then it tries other turns at its choice points. What it finds is legal; that nothing
shorter exists is not promised.

Knows token bytes and llguidance's matcher. Knows no limits, no sequences and no sampling.

Always true: an answer ends with the end-of-turn token, and depends on the matcher's token
history alone unless the time bound cut the search short.
"""

import heapq
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import llguidance
import numpy as np
import numpy.typing as npt

from runtime.grammar_schemas import required_names, string_samples
from runtime.tokenizer import Tokenizer
from tools_api.chat_format import Segment

Ids = npt.NDArray[np.int64]
MaskRow = npt.NDArray[np.int32]
Way = tuple[int, ...]

_CLOSES_STRING = re.compile(rb'"[\]}]*,?[ \n]*["{\[]?')
_STRUCTURE = re.compile(rb'[ \n]*(?:(?:null|true|false)[}\],]*|[{}\[\]",: \n]+)')
_MAX_PIECE_BYTES = 16
_FEW_TOKENS = 32
_MAX_WAYS = 4
_MAX_HINTS = 256
_MAX_KEY_TOKENS = 24
_MAX_IMPROVING_STEPS = 400
"""Steps spent on a shorter answer once there is one."""


@dataclass(slots=True)
class _Effort:
    """What a search may still spend: steps (one token fed and masked) and time."""

    steps: int
    deadline: float

    def spend(self) -> None:
        self.steps -= 1
        if self.steps % 16 == 0 and time.monotonic() > self.deadline:
            self.steps = 0


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


class ClosingTables:
    """What the search knows of a vocabulary. Made once per tokenizer; never changed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        pieces = [
            (tokenizer.token_bytes(token), token)
            for token in range(tokenizer.vocab_size)
            if tokenizer.is_defined(token) and not tokenizer.is_special(token)
        ]
        self.tokenizer = tokenizer
        self.lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        for piece, token in pieces:
            self.lengths[token] = len(piece)
        structure = [p for p in pieces if len(p[0]) <= 8 and _STRUCTURE.fullmatch(p[0])]
        closes_string = [p for p in pieces if _CLOSES_STRING.fullmatch(p[0])]
        self.structure = _ids(sorted(structure, key=lambda p: _rank(p, in_string=False)))
        self.closes_string = _ids(sorted(closes_string, key=lambda p: _rank(p, in_string=True)))
        self.letters = _ids([p for p in pieces if p[0] in (b"q", b"Z", b"x")])
        classes = [[p for p in pieces if _byte_class(p[0]) == kind] for kind in range(5)]
        self.long_pieces = [_ids(_longest(members)) for members in classes]
        self.single_bytes = [_ids([p for p in m if len(p[0]) == 1]) for m in classes]


class ClosingSearch:
    """The search for one grammar. ``find`` changes nothing and may run in several threads."""

    def __init__(self, tables: ClosingTables, lark: str) -> None:
        self._tables = tables
        self._end_of_turn = tables.tokenizer.end_of_turn_id
        self._row_words = (tables.tokenizer.vocab_size + 31) // 32
        self._quote = self._encode('"')[-1]
        self._required = required_names(lark)
        self._hints = self._string_ends(string_samples(lark))

    def find(
        self, matcher: llguidance.LLMatcher, *, limit: int, steps: int, seconds: float
    ) -> Way | None:
        """Tokens that end the turn legally from the matcher's state, end-of-turn included.

        Args:
            matcher: not changed.
            limit: most tokens the answer may have.
            steps: how many tokens to try in all.
            seconds: bound for grammars whose single steps are slow.

        Returns:
            None if the search found no answer of at most ``limit`` tokens.
        """
        effort = _Effort(steps, time.monotonic() + seconds)
        walk = self._walk(matcher.deep_copy(), (), limit, effort)
        best = walk.tokens if walk.complete else None
        if best is not None:
            effort.steps = min(effort.steps, _MAX_IMPROVING_STEPS)
        pending = list(reversed(walk.choices))
        while pending and effort.steps > 0:
            choice = pending.pop()
            for way in choice.others:
                longest = limit if best is None else len(best) - 1
                start = (*walk.tokens[: choice.position], *way)
                branch = choice.matcher.deep_copy()
                if len(start) >= longest or not branch.consume_tokens(list(way)):
                    continue
                found = self._walk(branch, start, longest, effort)
                if found.complete:
                    walk, best = found, found.tokens
                    pending = list(reversed(found.choices))
                    break
        return best

    def _walk(
        self, matcher: llguidance.LLMatcher, start: Way, limit: int, effort: _Effort
    ) -> _Walk:
        """Go on greedily from ``matcher``, which is fed, for at most ``limit`` tokens."""
        row = np.zeros(self._row_words, dtype=np.int32)
        tokens = list(start)
        choices: list[_Choice] = []
        while len(tokens) < limit and effort.steps > 0 and not matcher.is_error():
            if matcher.is_accepting():
                return _Walk((*tokens, self._end_of_turn), tuple(choices), complete=True)
            run = matcher.compute_ff_tokens()
            if run:
                tokens += run
                matcher.consume_tokens(run)
                continue
            effort.spend()
            _fill_mask(matcher, row)
            ways = [(token,) for token in self._closers(row)]
            if not ways:
                ways = self._hinted_ways(matcher, tuple(tokens)) or self._ways_to_closers(
                    matcher, row, limit - len(tokens), effort
                )
            if not ways:
                break
            if len(ways) > 1:
                choices.append(_Choice(matcher.deep_copy(), len(tokens), tuple(ways[1:])))
            tokens += ways[0]
            matcher.consume_tokens(list(ways[0]))
        return _Walk(tuple(tokens), tuple(choices), complete=False)

    def _closers(self, row: MaskRow) -> Way:
        """The tokens of structure that the mask allows, most closing first."""
        if _allowed(row, self._tables.letters, 1):
            return _allowed(row, self._tables.closes_string, _MAX_WAYS)
        return _allowed(row, self._tables.structure, _MAX_WAYS)

    def _string_ends(self, samples: list[str]) -> tuple[Way, ...]:
        """Every tail of the samples as tokens, fewest first: wherever a string stands in its
        pattern, one of them may finish it."""
        tails = {sample[i:] for sample in samples for i in range(len(sample))}
        return tuple(sorted(map(self._encode, tails), key=_way_order))[:_MAX_HINTS]

    def _encode(self, text: str) -> Way:
        return tuple(self._tables.tokenizer.encode([Segment(text)]).tolist())

    def _hinted_ways(self, matcher: llguidance.LLMatcher, tokens: Way) -> list[Way]:
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
        self, matcher: llguidance.LLMatcher, row: MaskRow, limit: int, effort: _Effort
    ) -> list[Way]:
        """The shortest ways found to a point where the output can close or is forced on.

        Uniform-cost search. A token that leaves the mask as it was, or gives the mask that
        a sibling gives, is taken to lead nowhere new; if that leaves nothing, a length is
        being counted, and long pieces are fed until the mask changes.
        """
        order = 0
        heap: list[tuple[int, int, Way, llguidance.LLMatcher, MaskRow, bool]] = []
        heapq.heappush(heap, (0, order, (), matcher, row.copy(), False))
        while effort.steps > 0:
            cost, _, way, node, node_row, goal = heapq.heappop(heap)
            if goal:
                others = sorted(entry for entry in heap if entry[5])
                return [way, *(entry[2] for entry in others[: _MAX_WAYS - 1])]
            if cost >= limit:
                return []
            seen = {node_row.tobytes()}
            for token in self._candidates(node_row):
                child = node.deep_copy()
                if not child.consume_token(token):
                    continue
                effort.spend()
                run = child.compute_ff_tokens()
                child.consume_tokens(run)
                child_row = np.zeros_like(row)
                _fill_mask(child, child_row)
                goal = child.is_accepting() or bool(self._closers(child_row))
                if child.is_error() or (not goal and child_row.tobytes() in seen):
                    continue
                seen.add(child_row.tobytes())
                order += 1
                child_way = (*way, token, *run)
                heapq.heappush(heap, (len(child_way), order, child_way, child, child_row, goal))
                if goal and len(child_way) == cost + 1:
                    break  # nothing shorter is left
            if not heap:
                fed = self._feed_long_pieces(node, node_row, limit - cost, effort)
                if not fed:
                    return []
                order += 1
                grown = node.deep_copy()
                grown.consume_tokens(list(fed))
                grown_row = np.zeros_like(row)
                _fill_mask(grown, grown_row)
                goal = grown.is_accepting() or bool(self._closers(grown_row))
                heap = [(cost + len(fed), order, (*way, *fed), grown, grown_row, goal)]
        return []

    def _feed_long_pieces(
        self, matcher: llguidance.LLMatcher, row: MaskRow, limit: int, effort: _Effort
    ) -> Way:
        """The longest allowed piece again and again, until the mask changes."""
        matcher, now = matcher.deep_copy(), row.copy()
        fed: list[int] = []
        while len(fed) < limit and effort.steps > 0 and not matcher.is_error():
            piece = next(iter(self._candidates(now)), None)
            if piece is None or not matcher.consume_token(piece):
                return ()
            effort.spend()
            fed.append(piece)
            _fill_mask(matcher, now)
            if not np.array_equal(now, row):
                return tuple(fed)
        return ()

    def _candidates(self, row: MaskRow) -> Iterator[int]:
        """Tokens that may lead on, longest first: all of a narrow mask, else some of each
        kind."""
        if int(np.bitwise_count(row).sum()) <= _FEW_TOKENS:
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            tokens = [int(t) for t in np.flatnonzero(bits) if int(t) != self._end_of_turn]
        else:
            tokens = [t for table in self._tables.long_pieces for t in _allowed(row, table, 1)]
            for table, count in zip(self._tables.single_bytes, (1, 1, 10, 12, 1), strict=True):
                tokens += _allowed(row, table, count)
        return iter(sorted(dict.fromkeys(tokens), key=lambda t: (-int(self._tables.lengths[t]), t)))


def _way_order(way: Way) -> tuple[int, Way]:
    return len(way), way


def _fill_mask(matcher: llguidance.LLMatcher, row: MaskRow) -> None:
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)


def _allowed(row: MaskRow, table: Ids, count: int) -> Way:
    """The first ``count`` tokens of the table that the mask allows."""
    hits = np.flatnonzero((row[table >> 5] >> (table & 31)) & 1)[:count]
    return tuple(table[hits].tolist())


def _ids(pieces: list[tuple[bytes, int]]) -> Ids:
    return np.array([token for _, token in pieces], dtype=np.int64)


def _byte_class(piece: bytes) -> int:
    """0 lower case and space, 1 upper case, 2 digits, 3 other printable, 4 the rest."""
    if not piece or not (0x20 <= piece[0] < 0x7F):
        return 4
    first = chr(piece[0])
    if first.islower() or first == " ":
        return 0
    if first.isupper():
        return 1
    return 2 if first.isdigit() else 3


def _longest(pieces: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    """Plain pieces, longest first: whole characters, none of which JSON escapes."""
    plain = []
    for piece, token in pieces:
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            continue
        if (
            1 < len(piece) <= _MAX_PIECE_BYTES
            and text.isprintable()
            and not set(text) & {'"', "\\"}
        ):
            plain.append((piece, token))
    return sorted(plain, key=lambda piece: (-len(piece[0]), piece[1]))[:256]


def _rank(piece: tuple[bytes, int], *, in_string: bool) -> tuple[float, int, int, int]:
    """Closers before whole values before separators before openers; of equals the one that
    covers more."""
    data, token = piece
    depth = 0.0 if data.strip() else 1.0
    for value in data.decode():
        if value == '"':
            in_string = not in_string
        elif not in_string:
            depth += (value in "{[") - (value in "}]") + 1.5 * (value in ",:")
    blanks = data.count(b" ") + data.count(b"\n")
    return (depth + 0.5 * in_string, -blanks, len(data), token)
