"""Every reason has words, and the words say where and how long."""

import pytest

from sessions.durable.miss_reasons import OWN, Miss, MissReason


@pytest.mark.parametrize("reason", MissReason)
def test_every_reason_has_words(reason: MissReason) -> None:
    assert Miss(reason=reason, tokens=1).words()


def test_a_change_says_where() -> None:
    miss = Miss(reason=MissReason.TOOLS_CHANGED, tokens=9, at_token=1212)
    assert miss.words() == "tools changed at token 1,212"


def test_what_was_evicted_says_how_long_it_was_kept() -> None:
    evicted = Miss(reason=MissReason.EVICTED, tokens=9, kept_s=312.4)
    expired = Miss(reason=MissReason.EXPIRED, tokens=9, kept_s=3.14)
    assert evicted.words() == "evicted after 312 s without lease"
    assert expired.words() == "evicted after its lease ran out, 3.1 s after the last turn"


def test_what_nobody_could_have_avoided_is_told_apart() -> None:
    assert set(MissReason) > OWN
    assert MissReason.EVICTED not in OWN
