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
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
_LITERAL_STARTS = frozenset(
    {b"0", b"1", *(word[:n] for word in (b"null", b"true", b"false") for n in range(1, 4))}
)
_MAX_PIECE_BYTES = 16
_FEW_TOKENS = 32
_MAX_WAYS = 4
_MAX_HINTS = 256
_MAX_KEY_TOKENS = 24
_MAX_KNOWN = 512
_MAX_KNOWN_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much a search may cost. Steps make the answer depend on the grammar alone; the
    time is a bound for grammars whose single steps are slow, far above what others take."""

    steps: int
    """Tokens tried at most."""
    improving_steps: int
    """How many of them after a first answer, for a shorter one."""
    seconds: float
    """Of this thread's own work: on a busy machine the answer is the same."""


THOROUGH = Effort(steps=4000, improving_steps=80, seconds=0.5)
"""Once per grammar, off the engine's loop."""
QUICK = Effort(steps=300, improving_steps=20, seconds=0.03)
"""Between two tokens of a turn."""


@dataclass(slots=True)
class _Left:
    """What a search may still spend: steps (one token fed and masked) and time."""

    steps: int
    deadline: float

    def spend(self) -> None:
        self.steps -= 1
        if time.thread_time() > self.deadline:
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


@dataclass(frozen=True, slots=True, order=True)
class _Node:
    """A state on the way to a point that closes."""

    cost: int
    order: int
    way: Way = field(compare=False)
    matcher: llguidance.LLMatcher = field(compare=False)
    row: MaskRow = field(compare=False)
    goal: bool = field(compare=False)


class ClosingTables:
    """What the search knows of a vocabulary. Made once per tokenizer; never changed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        pieces = [
            (tokenizer.token_bytes(token), token)
            for token in range(tokenizer.vocab_size)
            if tokenizer.is_defined(token) and not tokenizer.is_special(token)
        ]
        self.tokenizer = tokenizer
        structure = sorted(
            (p for p in pieces if len(p[0]) <= 8 and _STRUCTURE.fullmatch(p[0]) and p[0].strip()),
            key=lambda p: _rank(p, in_string=False),
        )
        goes_on = [p for p in structure if p[0].lstrip()[:1] in (b",", b":")]
        opens = [p for p in structure if _rank(p, in_string=False)[0] > 0 and p not in goes_on]
        self.structure = _ids([p for p in structure if p not in goes_on and p not in opens])
        self.separators, self.openers = _ids(goes_on), _ids(opens)
        self.literals = _ids([p for p in pieces if p[0] in _LITERAL_STARTS])
        closes_string = [p for p in pieces if _CLOSES_STRING.fullmatch(p[0])]
        self.closes_string = _ids(sorted(closes_string, key=lambda p: _rank(p, in_string=True)))
        self.letters = _ids([p for p in pieces if p[0] in (b"q", b"Z", b"x")])
        plain = [p for p in pieces if _is_plain(p[0])]
        classes = [[p for p in plain if _byte_class(p[0]) == kind] for kind in range(4)]
        self.long_pieces = [_ids(_longest(members)) for members in classes]
        self.single_bytes = [_ids([p for p in m if len(p[0]) == 1]) for m in classes]
        others = [p for p in pieces if not _is_plain(p[0])]
        self.other_pieces = _ids(sorted(others, key=_whole_characters_first))
        self.repairs = _repairs({p[0]: p[1] for p in reversed(pieces) if len(p[0]) == 1})

    def candidate_order(self, token: int) -> tuple[bool, int, int]:
        """Longest first; what asks for more, as a minus sign does, last."""
        piece = self.tokenizer.token_bytes(token)
        return piece[-1:] in (b"-", b"+", b"."), -len(piece), token


class ClosingSearch:
    """The search for one grammar. ``find`` changes nothing and may run in several threads;
    ``find_behind`` remembers and may not."""

    def __init__(self, tables: ClosingTables, lark: str) -> None:
        self._tables = tables
        self._end_of_turn = tables.tokenizer.end_of_turn_id
        self._row_words = (tables.tokenizer.vocab_size + 31) // 32
        self._quote = self._encode('"')[-1]
        self._required = required_names(lark)
        self._hints = self._string_ends(string_samples(lark))
        self._known: OrderedDict[Way, Way] = OrderedDict()

    def find(self, matcher: llguidance.LLMatcher, *, limit: int, effort: Effort) -> Way | None:
        """Tokens that end the turn legally from the matcher's state, end-of-turn included.

        Args:
            matcher: not changed.
            limit: most tokens the answer may have.

        Returns:
            None if the search found no answer of at most ``limit`` tokens.
        """
        left = _Left(effort.steps, time.thread_time() + effort.seconds)
        # A greedy walk may go round in circles; half is kept for its other turns.
        first = _Left(effort.steps // 2, left.deadline)
        walk = self._walk(matcher.deep_copy(), (), limit, first)
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
                found = self._walk(branch, start, longest, left)
                if found.complete:
                    walk, best = found, found.tokens
                    pending = list(reversed(found.choices))
                    break
        return best

    def find_behind(
        self, tokens: Way, matcher: llguidance.LLMatcher, *, limit: int, effort: Effort
    ) -> Way | None:
        """``find``, remembering what it found near the beginning: turns of one grammar mostly
        begin alike, with the name of one of a few tools.

        Args:
            tokens: all that ``matcher`` was fed.
        """
        if len(tokens) > _MAX_KNOWN_TOKENS:
            return self.find(matcher, limit=limit, effort=effort)
        known = self._known.pop(tokens, None)
        if known is None or len(known) > limit:
            known = self.find(matcher, limit=limit, effort=effort)
        if known is not None:
            self._known[tokens] = known
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return known

    def repairs(self, token: int) -> tuple[Way, ...]:
        """What may finish a character, an escape or a number that ``token`` left half
        written."""
        last = self._tables.tokenizer.token_bytes(token)[-1:]
        return self._tables.repairs.get(last[0], ()) if last else ()

    def _walk(self, matcher: llguidance.LLMatcher, start: Way, limit: int, left: _Left) -> _Walk:
        """Go on greedily from ``matcher``, which is fed, for at most ``limit`` tokens."""
        row = np.zeros(self._row_words, dtype=np.int32)
        tokens = list(start)
        choices: list[_Choice] = []
        while len(tokens) < limit and left.steps > 0 and not matcher.is_error():
            if matcher.is_accepting():
                return _Walk((*tokens, self._end_of_turn), tuple(choices), complete=True)
            run = matcher.compute_ff_tokens()
            if run:
                tokens += run
                matcher.consume_tokens(run)
                continue
            left.spend()
            _fill_mask(matcher, row)
            ways: list[Way] = [(token,) for token in self._closers(row)]
            if not ways:
                ways = self._ways_to_closers(matcher, row, tokens, limit - len(tokens), left)
            if not ways:
                break
            if len(ways) > 1:
                choices.append(_Choice(matcher.deep_copy(), len(tokens), tuple(ways[1:])))
            tokens += ways[0]
            matcher.consume_tokens(list(ways[0]))
        return _Walk(tuple(tokens), tuple(choices), complete=False)

    def _closers(self, row: MaskRow) -> Way:
        """The tokens of structure that the mask allows, most closing first."""
        tables = self._tables
        if _allowed(row, tables.letters, 1):
            return _allowed(row, tables.closes_string, _MAX_WAYS)
        for table in (tables.structure, tables.separators):
            if found := _allowed(row, table, _MAX_WAYS):
                return found
        openers = _allowed(row, tables.openers, _MAX_WAYS)
        # Where a value starts it may as well be a number or a word. Second, because a string
        # of digits looks the same, and there the quote is the end.
        return openers and openers[:2] + _allowed(row, tables.literals, _MAX_WAYS)

    def _string_ends(self, samples: list[str]) -> tuple[Way, ...]:
        """Every tail of the samples as tokens, fewest first: wherever a string stands in its
        pattern, one of them may finish it."""
        tails = {sample[i:] for sample in samples for i in range(len(sample))}
        return tuple(sorted(map(self._encode, tails), key=_way_order))[:_MAX_HINTS]

    def _encode(self, text: str) -> Way:
        return tuple(self._tables.tokenizer.encode([Segment(text)]).tolist())

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
    ) -> list[Way]:
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
                child = self._child(node, (token,), order, left)
                if child is None or (not child.goal and child.row.tobytes() in seen):
                    continue
                seen.add(child.row.tobytes())
                heapq.heappush(heap, child)
                if child.goal and child.cost == node.cost + 1:
                    break  # nothing shorter is left
            if not heap:
                fed = self._feed_long_pieces(node, limit - node.cost, left)
                child = self._child(node, fed, order, left) if fed else None
                if child is None:
                    return []
                heap = [child]
        return []

    def _child(self, node: _Node, fed: Way, order: int, left: _Left) -> _Node | None:
        """The node behind ``fed`` and the run it forces; None if that is not legal."""
        matcher = node.matcher.deep_copy()
        left.spend()
        if not matcher.consume_tokens(list(fed)):
            return None
        way = (*node.way, *fed, *matcher.compute_ff_tokens())
        matcher.consume_tokens(list(way[len(node.way) + len(fed) :]))
        row = np.zeros_like(node.row)
        _fill_mask(matcher, row)
        if matcher.is_error():
            return None
        goal = matcher.is_accepting() or bool(self._closers(row))
        return _Node(len(way), order, way, matcher, row, goal)

    def _feed_long_pieces(self, node: _Node, limit: int, left: _Left) -> Way:
        """The longest allowed piece again and again, until the mask changes."""
        matcher, row = node.matcher.deep_copy(), node.row.copy()
        fed: list[int] = []
        while len(fed) < limit and left.steps > 0 and np.array_equal(row, node.row):
            piece = next(iter(self._candidates(row)), None)
            if piece is None or not matcher.consume_token(piece):
                return ()
            left.spend()
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
            tokens = [t for table in tables.long_pieces for t in _allowed(row, table, 1)]
            for table, count in zip(tables.single_bytes, (1, 1, 10, 12), strict=True):
                tokens += _allowed(row, table, count)
            if not tokens:
                # Half a character or an escape leads round in circles where plain text is
                # legal as well.
                tokens = list(_allowed(row, tables.other_pieces, 2))
        return iter(sorted(dict.fromkeys(tokens), key=self._tables.candidate_order))


def _repairs(single: dict[bytes, int]) -> dict[int, tuple[Way, ...]]:
    """Tokens that finish what ends with a certain byte, from one-byte tokens."""

    def ways(*texts: bytes) -> tuple[Way, ...]:
        split = [[text[i : i + 1] for i in range(len(text))] for text in texts]
        return tuple(
            tuple(single[b] for b in way) for way in split if all(b in single for b in way)
        )

    # A UTF-8 lead byte narrows its first continuation byte to one of these (RFC 3629, 4).
    first = (b"\x80", b"\x90", b"\xa0")
    characters = ways(*(b + b"\x80" * more for more in range(3) for b in first))
    hexadecimal = ways(b"0", b"00", b"000", b"0000")
    table = dict.fromkeys(range(128, 256), characters)
    table |= dict.fromkeys(b"u0123456789abcdefABCDEF", hexadecimal)
    return table | {value: ways(b"0") for value in b"-+."} | {ord("\\"): ways(b"n")}


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


def _is_plain(piece: bytes) -> bool:
    """Printable ASCII that stands for itself in a JSON string."""
    return all(0x20 <= value < 0x7F and value not in b'"\\' for value in piece)


def _byte_class(piece: bytes) -> int:
    """0 lower case and space, 1 upper case, 2 digits, 3 other signs."""
    first = piece[:1].decode()
    if first.islower() or first == " ":
        return 0
    if first.isupper():
        return 1
    return 2 if first.isdigit() else 3


def _longest(pieces: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    long = [p for p in pieces if 1 < len(p[0]) <= _MAX_PIECE_BYTES]
    return sorted(long, key=lambda piece: (-len(piece[0]), piece[1]))[:256]


def _whole_characters_first(piece: tuple[bytes, int]) -> tuple[bool, int, int]:
    try:
        piece[0].decode()
    except UnicodeDecodeError:
        return True, len(piece[0]), piece[1]
    return False, -len(piece[0]), piece[1]


def _rank(piece: tuple[bytes, int], *, in_string: bool) -> tuple[float, int, int, int]:
    """Closers before whole values before separators before openers; of equals the one that
    covers more."""
    data, token = piece
    depth = 0.0
    for value in data.decode():
        if value == '"':
            in_string = not in_string
        elif not in_string:
            depth += (value in "{[") - (value in "}]") + 1.5 * (value in ",:")
    blanks = data.count(b" ") + data.count(b"\n")
    return (depth + 0.5 * in_string, -blanks, len(data), token)
