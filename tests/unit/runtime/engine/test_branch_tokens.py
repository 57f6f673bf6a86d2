"""Token buffers of sessions: continue, rewind, fork, forget."""

import random
from collections.abc import Sequence

import pytest

from runtime.engine.branch_tokens import BranchTokens
from runtime.messages import GenerationRequest
from runtime.scheduling.sequence import TokenBuffer
from tests.support.requests import make_request


def _request(session: str, base: str | None, offset: int, new: Sequence[int]) -> GenerationRequest:
    return make_request(new, branch_id=session, base_branch_id=base, base_offset=offset)


def _open(sessions: BranchTokens, *args: object) -> list[int] | None:
    request = _request(*args)  # type: ignore[arg-type]
    opened = sessions.open(request)
    sessions.close(request.branch_id, ran=True)
    return None if opened is None else opened[0].view().tolist()


def test_a_session_is_continued_rewound_and_forked() -> None:
    sessions = BranchTokens(max_bytes=1000)
    assert _open(sessions, "a", None, 0, [1, 2, 3]) == [1, 2, 3]
    assert _open(sessions, "a", "a", 3, [4]) == [1, 2, 3, 4]
    assert _open(sessions, "b", "a", 2, [9]) == [1, 2, 9]
    assert _open(sessions, "a", "a", 4, []) == [1, 2, 3, 4], "the fork wrote into its base"
    assert _open(sessions, "a", "a", 1, [7]) == [1, 7]


def test_an_unknown_or_too_short_base_changes_nothing() -> None:
    sessions = BranchTokens(max_bytes=1000)
    _open(sessions, "a", None, 0, [1, 2])
    assert _open(sessions, "a", "a", 3, [4]) is None
    assert _open(sessions, "b", "gone", 0, [4]) is None
    assert _open(sessions, "a", "a", 2, []) == [1, 2]
    assert len(sessions) == 1


def test_the_longest_unused_idle_session_is_forgotten_first() -> None:
    sessions = BranchTokens(max_bytes=4 * 20)
    for name in "abc":
        _open(sessions, name, None, 0, range(8))
    sessions.open(_request("a", "a", 8, []))
    assert sessions.is_busy("a")
    assert sessions.overflow() == ["b"]
    assert sessions.overflow() == []
    sessions.close("a", ran=True)
    assert not sessions.is_busy("a")
    assert _open(sessions, "b", "b", 8, []) is None


def test_a_busy_session_is_never_forgotten() -> None:
    sessions = BranchTokens(max_bytes=0)
    sessions.open(_request("a", None, 0, [1]))
    assert sessions.overflow() == []
    sessions.close("a", ran=True)
    assert sessions.overflow() == ["a"]


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_counts_what_there_is_whatever_happened(seed: int) -> None:
    rng, sessions = random.Random(seed), BranchTokens(max_bytes=4 * 60)
    busy: dict[str, TokenBuffer] = {}
    forgotten = 0
    for _ in range(400):
        name = rng.choice("abcdefgh")
        if name in busy:
            busy[name].extend(range(rng.randint(0, 5)))
            if rng.random() < 0.5:
                del busy[name]
                sessions.close(name, ran=rng.random() < 0.8)
        elif rng.random() < 0.2:
            sessions.release(name)
        else:
            base = rng.choice([None, name, rng.choice("abcdefgh")])
            offset = 0 if base is None else rng.randint(0, sessions.length(base))
            if base not in busy:
                opened = sessions.open(_request(name, base, offset, range(rng.randint(1, 20))))
                if opened is not None:
                    busy[name] = opened[0]
        if rng.random() < 0.1 and busy:
            sessions.release(next(iter(busy)))  # its sequence goes on
        idle = [name for name in "abcdefgh" if not sessions.is_busy(name)]
        assert sessions.idle_tokens == sum(map(sessions.length, idle))
        if rng.random() < 0.3:
            gone = sessions.overflow()
            forgotten += len(gone)
            assert not set(gone) & set(busy)
            held = sum(map(sessions.length, "abcdefgh"))
            assert held <= 60 or not sum(map(sessions.length, idle))
    assert forgotten > 10


def _vouched(sessions: BranchTokens, *args: object, ran: bool) -> int:
    request = _request(*args)  # type: ignore[arg-type]
    opened = sessions.open(request)
    assert opened is not None
    sessions.close(request.branch_id, ran=ran)
    return opened[1]


def test_tokens_of_a_turn_that_never_ran_are_not_vouched_for() -> None:
    sessions = BranchTokens(max_bytes=1000)
    assert _vouched(sessions, "a", None, 0, range(10), ran=True) == 0
    assert _vouched(sessions, "a", "a", 10, [1, 2], ran=True) == 10
    assert _vouched(sessions, "a", "a", 4, [7, 8, 9], ran=False) == 4
    assert _vouched(sessions, "a", "a", 7, [5], ran=False) == 4
    assert _vouched(sessions, "b", "a", 8, [5], ran=True) == 4
    assert _vouched(sessions, "a", "a", 8, [5], ran=True) == 4
    assert _vouched(sessions, "a", "a", 9, [5], ran=True) == 9
    assert _vouched(sessions, "b", "b", 9, [5], ran=True) == 9
