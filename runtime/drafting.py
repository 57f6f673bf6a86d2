"""Tokens a turn will probably emit next: forced by its grammar, or copied from before.

A draft is a guess that the engine verifies in one forward pass; it changes how many passes a
turn takes and never what it says. The drafter splices two sources in one chain: where the
grammar leaves one token, that one; else what followed the longest earlier occurrence of the
last tokens, in the session itself or, failing that, in the tenant's earlier outputs. It
stops where the chain is more likely wrong than worth computing.

Knows tokens and the grammar's state. Knows no logits, no schedule and no devices; all of it
is host code of some 100 us a step.

Always true: what is copied comes from the same session or the same tenant; memory is
bounded in bytes; a draft never goes beyond an end of turn.
"""

import enum
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from runtime.ngram_index import MAX_MATCH, NgramIndex
from runtime.token_mask import GrammarState

TokenArray = npt.NDArray[np.int32]

MIN_SURVIVAL = 0.25
"""A chain ends before the token with which it would be right less often than this."""
_SMOOTHING = 0.3
_BREAK = -1
"""Stands between two outputs in a tenant's memory; no context holds it."""
_PROBE_EVERY = 32
_MAX_LEARNERS = 4096
_LEARNING_RATE = 1 / 64


class DraftSource(enum.Enum):
    """Where a drafted token comes from."""

    FORCED = "forced"
    SESSION = "session"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A chain of proposed tokens, in order."""

    tokens: TokenArray
    """int32 [k], k >= 0."""
    sources: tuple[DraftSource, ...]
    survival: tuple[float, ...]
    """Estimated probability that the chain is right up to and including each token; never
    rising. What is worth its place in a step is for ``share_budget`` to say."""

    def cut(self, length: int) -> "Draft":
        """The first ``length`` tokens."""
        return Draft(
            tokens=self.tokens[:length],
            sources=self.sources[:length],
            survival=self.survival[:length],
        )

    def certain(self, length: int) -> tuple[int, ...]:
        """Places, of the first ``length``, whose token is certain if those before it are
        right: the grammar forces it."""
        return tuple(
            place
            for place, source in enumerate(self.sources[:length])
            if source is DraftSource.FORCED
        )


EMPTY_DRAFT = Draft(tokens=np.empty(0, dtype=np.int32), sources=(), survival=())


_Turn = TypeVar("_Turn", bound=Hashable)


def share_budget(drafts: Mapping[_Turn, Draft], budget: int) -> dict[_Turn, Draft]:
    """What of several turns' drafts goes into one step of at most ``budget`` draft tokens:
    those that are most likely to be right, wherever they come from. Of each draft it is a
    leading part, as survival never rises; among equals the earlier turn's come first."""
    if sum(len(draft.tokens) for draft in drafts.values()) <= budget:
        return dict(drafts)
    ranked = sorted(
        ((-chance, turn) for turn, draft in drafts.items() for chance in draft.survival),
        key=itemgetter(0),
    )
    shares = Counter(turn for _, turn in ranked[:budget])
    return {turn: drafts[turn].cut(count) for turn, count in shares.items()}


class Drafter(Protocol):
    """What the engine knows of drafting."""

    def propose(
        self,
        session_id: str,
        tenant: str,
        tokens: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Draft:
        """A chain for behind the last of ``tokens``.

        Args:
            tokens: int32 [n], the session's whole transcript; grows from call to call. If
                it was cut since, say so with ``close``.
            grammar: the turn's state at the same place; not changed.
            limit: most tokens the draft may have.
            may_go_on: asked before each token that is not forced; the chain ends at a no.
        """

    def verified(self, session_id: str, verified: int, accepted: int) -> None:
        """Of the session's last draft, the first ``verified`` tokens were looked at and the
        first ``accepted`` of them were right."""

    def remember(self, tenant: str, output: TokenArray) -> None:
        """Keep a turn's output as a source for the tenant's other sessions."""

    def close(self, session_id: str) -> None:
        """Forget the session's index."""


class AppMemory:
    """Earlier outputs of each tenant, the newest of them, bounded in bytes.

    A tenant never sees another's. When a tenant outgrows its share the older half of its
    outputs goes; when all together outgrow the bound the tenant that was quiet longest goes.
    """

    def __init__(self, *, max_bytes: int, max_tenant_tokens: int = 65_536) -> None:
        self._max_bytes = max_bytes
        self._max_tenant_tokens = max_tenant_tokens
        self._tenants: OrderedDict[str, _Log] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return sum(log.num_bytes for log in self._tenants.values())

    def remember(self, tenant: str, output: TokenArray) -> None:
        output = output[-self._max_tenant_tokens // 4 :]
        log = self._tenants.setdefault(tenant, _Log())
        self._tenants.move_to_end(tenant)
        if log.length + len(output) + 1 > self._max_tenant_tokens:
            log.keep_newest(self._max_tenant_tokens // 2)
        log.append(output)
        while self.num_bytes > self._max_bytes:
            self._tenants.popitem(last=False)

    def source(self, tenant: str) -> "_Source | None":
        log = self._tenants.get(tenant)
        if log is None:
            return None
        return _Source(log.index, log.tokens, DraftSource.MEMORY)


class _Log:
    """Outputs one behind the other, each followed by a break, and their index."""

    def __init__(self) -> None:
        self.index = NgramIndex()
        self.length = 0
        self._array = np.empty(1024, dtype=np.int32)

    @property
    def tokens(self) -> TokenArray:
        return self._array[: self.length]

    @property
    def num_bytes(self) -> int:
        return self._array.nbytes + self.index.num_bytes

    def append(self, output: TokenArray) -> None:
        end = self.length + len(output) + 1
        if end > len(self._array):
            grown = np.empty(max(end, 2 * len(self._array)), dtype=np.int32)
            grown[: self.length] = self.tokens
            self._array = grown
        self._array[self.length : end - 1] = output
        self._array[end - 1] = _BREAK
        self.length = end
        self.index.extend(self.tokens)

    def keep_newest(self, count: int) -> None:
        kept = self.tokens[-count:].copy()
        self.index = NgramIndex()
        self.length = len(kept)
        self._array[: self.length] = kept
        self.index.extend(self.tokens)


@dataclass(frozen=True, slots=True)
class _Source:
    """A text to copy from."""

    index: NgramIndex
    tokens: TokenArray
    kind: DraftSource


@dataclass(frozen=True, slots=True)
class _Vote:
    token: int
    probability: float
    source: DraftSource
    length: int


class _Walk:
    """Follows the places that matched, as long as the chain goes on as they do."""

    __slots__ = ("_length", "_positions", "_source")

    def __init__(self, source: _Source, length: int, positions: list[int]) -> None:
        self._source = source
        self._length = length
        self._positions = positions

    def votes(self) -> tuple[Counter[int], int, DraftSource]:
        """How often each token came next, the length of the match, and the source."""
        tokens = self._source.tokens
        return (
            Counter(int(tokens[position]) for position in self._positions),
            self._length,
            self._source.kind,
        )

    def follow(self, chosen: Iterable[int]) -> "_Walk | None":
        """The walk behind ``chosen``; None when no place goes on like that."""
        tokens, end = self._source.tokens, len(self._source.tokens)
        positions, length = self._positions, self._length
        for token in chosen:
            positions = [p + 1 for p in positions if tokens[p] == token and p + 1 < end]
            length += 1
        return _Walk(self._source, min(length, MAX_MATCH), positions) if positions else None


class InterleavedDrafter:
    """Forced runs and copied tokens spliced in one chain."""

    def __init__(
        self,
        *,
        end_of_turn_ids: frozenset[int],
        max_index_bytes: int,
        max_memory_bytes: int,
        min_survival: float = MIN_SURVIVAL,
    ) -> None:
        """
        Args:
            max_index_bytes: for the indices of all sessions; the one idle longest is
                dropped, and made again when its session goes on.
            max_memory_bytes: for the tenants' earlier outputs.
        """
        self._end_of_turn_ids = end_of_turn_ids
        self._max_index_bytes = max_index_bytes
        self._min_survival = min_survival
        self._indices: OrderedDict[str, NgramIndex] = OrderedDict()
        self._index_bytes = 0
        self._memory = AppMemory(max_bytes=max_memory_bytes)
        self._calibration = Calibration()
        self._open: dict[str, tuple[str, list[tuple[int, _Vote]]]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes held for sessions and tenants, within the two bounds together."""
        return self._index_bytes + self._memory.num_bytes

    def propose(
        self,
        session_id: str,
        tenant: str,
        tokens: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Draft:
        if limit <= 0:
            return EMPTY_DRAFT
        sources = [_Source(self._index(session_id, tokens), tokens, DraftSource.SESSION)]
        memory = self._memory.source(tenant)
        if memory is not None:
            sources.append(memory)
        chain = _Chain(tokens[-MAX_MATCH:], grammar, limit, self._end_of_turn_ids)
        for vote in chain.votes(sources, may_go_on):
            survival = chain.survival * self._calibration.probability(tenant, vote)
            if survival < self._min_survival and not (
                chain.is_empty and self._calibration.is_probe(tenant)
            ):
                break
            chain.add(vote, survival)
        if chain.added:
            self._open[session_id] = (tenant, chain.added)
        return chain.draft()

    def verified(self, session_id: str, verified: int, accepted: int) -> None:
        tenant, votes = self._open.pop(session_id, ("", []))
        for place, vote in votes:
            # Behind the first wrong token nothing was learnt.
            if place < min(verified, accepted + 1):
                self._calibration.learn(tenant, vote, place < accepted)

    def remember(self, tenant: str, output: TokenArray) -> None:
        self._memory.remember(tenant, output)

    def close(self, session_id: str) -> None:
        self._open.pop(session_id, None)
        index = self._indices.pop(session_id, None)
        if index is not None:
            self._index_bytes -= index.num_bytes

    def _index(self, session_id: str, tokens: TokenArray) -> NgramIndex:
        index = self._indices.pop(session_id, None)
        if index is not None:
            self._index_bytes -= index.num_bytes
        if index is None or len(index) > len(tokens):
            index = NgramIndex()
        index.extend(tokens)
        self._indices[session_id] = index
        self._index_bytes += index.num_bytes
        while self._index_bytes > self._max_index_bytes and len(self._indices) > 1:
            _, dropped = self._indices.popitem(last=False)
            self._index_bytes -= dropped.num_bytes
        return index


class _Chain:
    """A draft in the making: its tokens, and where grammar and matches stand behind it."""

    def __init__(
        self,
        context: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        end_of_turn_ids: frozenset[int],
    ) -> None:
        self._context = context
        self._grammar = None if grammar is None else grammar.copy()
        self._limit = limit
        self._end_of_turn_ids = end_of_turn_ids
        self._tokens: list[int] = []
        self._sources: list[DraftSource] = []
        self._survival: list[float] = []
        self._walk: _Walk | None = None
        self.survival = 1.0
        self.added: list[tuple[int, _Vote]] = []
        """Copied tokens with their places in the draft."""

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    def votes(self, sources: list[_Source], may_go_on: Callable[[], bool]) -> Iterator[_Vote]:
        """One vote for each next place, forced runs filled in between; the caller adds the
        vote or stops."""
        while may_go_on():
            self._add_forced()
            if len(self._tokens) >= self._limit or self._has_ended():
                return
            vote = self._vote(sources)
            if vote is None:
                return
            yield vote

    def add(self, vote: _Vote, survival: float) -> None:
        self.survival = survival
        self.added.append((len(self._tokens), vote))
        self._append([vote.token], vote.source)

    def draft(self) -> Draft:
        return Draft(
            tokens=np.array(self._tokens, dtype=np.int32),
            sources=tuple(self._sources),
            survival=tuple(self._survival),
        )

    def _append(self, tokens: list[int], source: DraftSource) -> None:
        self._tokens += tokens
        self._sources += [source] * len(tokens)
        self._survival += [self.survival] * len(tokens)
        if self._walk is not None:
            self._walk = self._walk.follow(tokens)
        if self._grammar is not None:
            self._grammar.advance(tokens)

    def _add_forced(self) -> None:
        if self._grammar is not None and not self._has_ended():
            run = self._grammar.forced_tokens(self._limit - len(self._tokens))
            if run:
                self._append(run, DraftSource.FORCED)

    def _has_ended(self) -> bool:
        return bool(self._tokens) and self._tokens[-1] in self._end_of_turn_ids

    def _vote(self, sources: list[_Source]) -> _Vote | None:
        if self._walk is not None:
            vote = self._choose(self._walk)
            if vote is not None:
                return vote
        drafted = np.array(self._tokens[-MAX_MATCH:], dtype=np.int32)
        context = np.concatenate((self._context, drafted)) if len(drafted) else self._context
        for source in sources:
            matches = source.index.match(source.tokens, context)
            if matches is None:
                continue
            self._walk = _Walk(source, matches.length, matches.next_positions.tolist())
            vote = self._choose(self._walk)
            if vote is not None:
                return vote
        return None

    def _choose(self, walk: _Walk) -> _Vote | None:
        """The token most places go on with, among those that are legal here (Laplace-like
        share of the votes; longer matches are trusted more)."""
        counts, length, source = walk.votes()
        legal = [
            (count, token)
            for token, count in counts.most_common(4)
            if token != _BREAK and (self._grammar is None or self._grammar.validate((token,)))
        ]
        if not legal:
            return None
        count, token = legal[0]
        share = count / (sum(c for c, _ in legal) + _SMOOTHING)
        return _Vote(token, share * (1 - 2.0**-length), source, length)


class Calibration:
    """How far the votes' own estimates can be trusted, learnt for each tenant, source and
    length of match."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, DraftSource, int], tuple[float, float]] = OrderedDict()
        self._skipped: Counter[str] = Counter()

    def probability(self, tenant: str, vote: _Vote) -> float:
        right, expected = self._seen.get(_learner(tenant, vote), (1.0, 1.0))
        return min(vote.probability * right / expected, 0.99)

    def is_probe(self, tenant: str) -> bool:
        """True now and then, so that what lost can show that it would win again."""
        self._skipped[tenant] += 1
        if self._skipped[tenant] < _PROBE_EVERY:
            return False
        del self._skipped[tenant]
        return True

    def learn(self, tenant: str, vote: _Vote, right: bool) -> None:
        """Note how a vote turned out: exponential means of outcome and of estimate."""
        key = _learner(tenant, vote)
        seen, expected = self._seen.pop(key, (1.0, 1.0))
        seen += _LEARNING_RATE * (right - seen)
        expected += _LEARNING_RATE * (vote.probability - expected)
        self._seen[key] = (max(seen, 0.01), max(expected, 0.01))
        if len(self._seen) > _MAX_LEARNERS:
            self._seen.popitem(last=False)


def _learner(tenant: str, vote: _Vote) -> tuple[str, DraftSource, int]:
    return tenant, vote.source, vote.length.bit_length()
