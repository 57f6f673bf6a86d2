"""A short ending for plain text that a client's own grammar binds.

``runtime.grammar.closing`` knows how JSON closes and asks here last; this search knows nothing
of the text but the words that stand in its grammar. It goes from word to word, the way with
fewest of them first: where the mask is narrow it tries every token, elsewhere the grammar's own
strings and a few signs.

Knows llguidance's matcher. Knows no sequences and no time: it pauses after every step.

Always true: an answer is legal and ends with the end-of-turn token; that there is none, or none
shorter, is not said.
"""

import heapq
import itertools
import json
import re
from collections.abc import Generator
from dataclasses import dataclass, field

import llguidance
import numpy as np

from runtime.grammar.closing_tables import Way
from runtime.grammar.mask_bits import MaskRow, mask_words
from runtime.tokenizer import Tokenizer

_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
_NESTED = re.compile(r"^input_\d+: %lark \{\n(.*?)\n\}$", re.MULTILINE | re.DOTALL)
_SIGNS = ("a", "0", "\n", " ", "A", "+", "-", "@", '"', ")", "]", "}", ";", ",", ".", "_", "=")
_FEW_TOKENS = 32
_MAX_WORDS = 64


@dataclass(frozen=True, slots=True, order=True)
class _State:
    """A point of the text, and the tokens that led there."""

    moves: int
    """Made on the way; what is forced is none."""
    num_tokens: int
    order: int
    way: Way = field(compare=False)
    matcher: llguidance.LLMatcher = field(compare=False)
    row: MaskRow = field(compare=False)


class PlainClosing:
    """The search for one grammar."""

    def __init__(self, tokenizer: Tokenizer, lark: str) -> None:
        self._end_of_turn = tokenizer.end_of_turn_id
        self._row_words = mask_words(tokenizer.vocab_size)
        texts = dict.fromkeys((*_SIGNS, *_words(lark)))
        ways = [tuple(tokenizer.spell(text)) for text in texts if text]
        specials = [(token,) for token in sorted(tokenizer.specials.values())]
        self._moves = (*specials, *ways[:_MAX_WORDS])

    def finding(
        self, matcher: llguidance.LLMatcher, *, limit: int, steps: int
    ) -> Generator[None, None, Way | None]:
        """Tokens that end the output from where ``matcher``, which is not changed, stands.

        Args:
            limit: most tokens the answer may have.
            steps: tokens and words tried at most.
        """
        numbers = itertools.count()
        first = self._state((), 0, matcher.deep_copy(), next(numbers))
        heap = [] if first is None else [first]
        while heap and steps > 0:
            state = heapq.heappop(heap)
            if state.matcher.is_accepting():
                return (*state.way, self._end_of_turn)
            seen: set[tuple[bytes, Way]] = {(state.row.tobytes(), ())}
            counting: _State | None = None
            for move in self._moves_from(state.row):
                if state.matcher.validate_tokens(list(move)) != len(move):
                    continue
                steps -= 1
                yield
                child = self._behind(state, move, next(numbers))
                if child is None or child.num_tokens >= limit:
                    continue
                forced = child.way[len(state.way) + len(move) :]
                if (child.row.tobytes(), forced) not in seen:
                    seen.add((child.row.tobytes(), forced))
                    heapq.heappush(heap, child)
                elif counting is None:
                    counting = child
            # What forces nothing and leaves the mask as it was leads nowhere new, but for a length
            # that is being counted.
            if not heap and counting is not None:
                heap.append(counting)
        return None

    def _moves_from(self, row: MaskRow) -> tuple[Way, ...]:
        if int(np.bitwise_count(row.view(np.uint32)).sum()) > _FEW_TOKENS:
            return self._moves
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        return tuple((int(t),) for t in np.flatnonzero(bits) if int(t) != self._end_of_turn)

    def _behind(self, state: _State, move: Way, number: int) -> _State | None:
        matcher = state.matcher.deep_copy()
        matcher.consume_tokens(list(move))
        return self._state((*state.way, *move), state.moves + 1, matcher, number)

    def _state(
        self, way: Way, moves: int, matcher: llguidance.LLMatcher, number: int
    ) -> _State | None:
        """The state behind what is forced; None if the grammar gave up there."""
        if forced := matcher.compute_ff_tokens():
            matcher.consume_tokens(forced)
            way = (*way, *forced)
        row = np.zeros(self._row_words, dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if matcher.is_error():
            return None
        return _State(moves, len(way), number, way, matcher, row)


def _words(lark: str) -> list[str]:
    """The strings that stand in the clients' grammars inside ``lark``."""
    words = []
    for nested in _NESTED.findall(lark):
        for literal in _STRING.findall(nested):
            try:
                words.append(str(json.loads(literal)))
            except ValueError:
                continue  # an escape that JSON does not have
    return words
