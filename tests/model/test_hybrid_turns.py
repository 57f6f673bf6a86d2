"""A hybrid's turns on the whole engine: what they find, and what bad input does to them."""

import random

import pytest
import torch

from radix_cache.nodes import Tier
from radix_cache.snapshots import SnapshotKind
from runtime.messages import ErrorKind, FinishReason, ResumePoint
from runtime.model.config import LoadError
from tests.support.engine_driver import EngineDriver, Result
from tests.support.preset_kinds import DELTA


def load(**settings: object) -> EngineDriver:
    return EngineDriver.load(
        **{  # type: ignore[arg-type]
            "model": "random:lfm2-tiny",
            "num_blocks": 600,
            "max_running": 8,
            "max_draft_tokens": 0,
            "startup_profile_ms": 0,
            **settings,
        }
    )


def said(seed: int, count: int) -> list[int]:
    return [random.Random(f"{seed}/{at}").randrange(32, 127) for at in range(count)]


def played(driver: EngineDriver, tokens: list[int], **more: object) -> Result:
    name = driver.request(tokens, **more)  # type: ignore[arg-type]
    driver.run()
    driver.engine.check()
    return driver.results[name]


@pytest.mark.tail
def test_twenty_turns_of_eight_sessions_recompute_nothing_with_slots_for_sixteen() -> None:
    """Each turn finds all that the one before it has run through the model: its exact end, but for
    the last drawn token."""
    driver = load(state_slots=16)
    texts = {f"s{n}": list[int]() for n in range(8)}
    for number in range(20):
        names = {}
        for n, (session, text) in enumerate(texts.items()):
            new = said(100 * number + n, 5 + n)
            base = session if text else None
            names[session] = driver.request(
                new, session=session, base=base, offset=len(text), max_new_tokens=4 + n
            )
            text += new
        driver.run()
        for session, name in names.items():
            result, text = driver.results[name], texts[session]
            assert result.start is not None
            if number:
                new = result.start.input_tokens - result.start.cached_tokens
                assert new == 5 + int(session[1:]) + 1
            text += result.tokens
        driver.engine.check()


def test_others_begin_where_a_request_says_they_will() -> None:
    driver = load()
    header = said(1, 37)
    played(driver, header + said(2, 20), resume_points=(37,))
    result = played(driver, header + said(3, 20))
    assert result.start is not None
    assert result.start.cached_tokens == 37


def test_a_turn_says_at_which_state_it_began() -> None:
    driver = load(max_batch_tokens=90)

    def began(tokens: list[int], **more: object) -> ResumePoint | None:
        result = played(driver, tokens, max_new_tokens=4, **more)
        assert result.start is not None
        point = result.start.resumed
        assert point is not None
        assert point.position == result.start.cached_tokens
        return point

    header, device = said(1, 37), {"tier": "device"}
    first = header + said(2, 40)
    assert began(first, session="a", resume_points=(37,)) == ResumePoint(position=0)
    end = len(first) + 3
    assert began(said(3, 9), session="a", base="a", offset=end + 1) == ResumePoint(
        position=end, kind="end", **device
    )
    assert began(header + said(4, 9)) == ResumePoint(position=37, kind="header", **device)
    shared = first[:64]
    began(shared + said(5, 9))
    assert began(shared + said(6, 9)) == ResumePoint(position=64, kind="junction", **device)
    stopped = driver.request(said(7, 150), session="b", max_new_tokens=20)
    driver.step()
    driver.cancel(stopped)
    driver.run()
    point = began(said(7, 150))
    assert point is not None
    assert (point.kind, 0 < point.position < 150) == ("pause", True)


@pytest.mark.tail
@pytest.mark.parametrize("model", ["lfm2-tiny", *DELTA])
def test_states_of_a_long_prompt_are_kept_on_its_way_and_give_the_same_tokens(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork inside it goes on from the last one before, and the next one from the junction."""
    monkeypatch.setattr("runtime.scheduling.queues.INTERVAL_TOKENS", 64)
    text = said(1, 400)
    other = [*text[:300], *said(2, 40)]
    found = {}
    for host in (0, 1 << 24):
        below = {"host_kv_bytes": host, "host_state_bytes": 1 << 20} if host else {}
        driver = load(model=f"random:{model}", max_batch_tokens=150, dtype="float64", **below)
        turns = [played(driver, tokens, max_new_tokens=8) for tokens in (text, other, other)]
        found[host] = [turn.tokens for turn in turns]
        begun = [turn.start.resumed for turn in turns if turn.start is not None]
        if host:
            assert begun[1] == ResumePoint(position=256, kind="interval", tier="host")
        else:
            assert begun[1] == ResumePoint(position=0)
        short = played(driver, [*other, *said(3, 30)])
        assert short.start is not None
        assert short.start.resumed is not None
        assert short.start.resumed.position > 300
        taken = driver.engine.memory.cache.stats().snapshots_taken.get(SnapshotKind.INTERVAL, 0)
        assert taken == (len(range(64, 400, 64)) + 1 if host else 0), "none of short turns"
    assert found[0] == found[1 << 24]


def test_a_model_without_recurrent_layers_says_nothing_of_states() -> None:
    driver = load(model="random:qwen3-tiny")
    result = played(driver, said(1, 30))
    assert result.start is not None
    assert result.start.resumed is None


def test_the_third_visitor_of_a_junction_pays_nothing_for_it() -> None:
    driver = load()
    shared, found = said(1, 64), []
    for n in range(3):
        result = played(driver, shared + said(10 + n, 20))
        assert result.start is not None
        found.append((result.start.cached_tokens, result.start.miss_causes.get("state_missing", 0)))
    assert found == [(0, 0), (0, 64), (64, 0)]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ((0,), "outside the prompt of 30 tokens"),
        ((30,), "outside the prompt of 30 tokens"),
        ((5, 900), "outside the prompt of 30 tokens"),
        ((9, 5), "ascending order"),
        ((5, 5), "ascending order"),
        (tuple(range(1, 10_001)), "10000 positions, at most 16"),
    ],
)
def test_positions_that_make_no_sense_are_refused_and_harm_no_one(
    points: tuple[int, ...], message: str
) -> None:
    driver = load()
    result = played(driver, said(1, 30), resume_points=points)
    assert result.error is ErrorKind.INTERNAL
    assert message in result.error_message
    assert played(driver, said(1, 30), resume_points=(5, 9)).finish is FinishReason.LENGTH


def test_a_state_that_is_not_finite_ends_its_turn_and_leaves_nothing() -> None:
    driver = load(state_slots=8)
    states = driver.runner.states
    assert states is not None
    whole = played(driver, said(1, 40), session="a", max_new_tokens=6).tokens
    driver.request(said(1, 40), session="b", base="a", offset=0, max_new_tokens=30)
    for _ in range(3):
        driver.step()
    states.rings.fill_(torch.nan)
    states.rows[: states.num_slots].fill_(torch.nan)
    driver.run()
    ended = driver.results["r2"]
    assert ended.error is ErrorKind.NOT_FINITE
    for slot in range(states.num_slots):  # what was kept before is spoiled by the test itself
        driver.engine.memory.cache.state_spoiled(Tier.DEVICE, slot)
    states.rows[: states.num_slots].fill_(torch.nan)
    again = played(driver, said(1, 40), max_new_tokens=6)
    assert again.tokens == whole
    assert torch.isfinite(states.rows[-1]).all()


def test_a_cancelled_turn_whose_state_is_not_finite_leaves_no_snapshot() -> None:
    driver = load(state_slots=8, max_batch_tokens=16)
    states = driver.runner.states
    assert states is not None
    name = driver.request(said(1, 60), session="a", max_new_tokens=6)
    driver.step()
    driver.step()
    states.rings.fill_(torch.nan)
    states.rows[: states.num_slots].fill_(torch.nan)
    driver.cancel(name)
    result = played(driver, said(1, 60), max_new_tokens=6)
    assert result.finish is FinishReason.LENGTH
    assert result.start is not None


def test_a_client_that_rewrites_its_history_and_one_that_forks_over_and_over_get_on() -> None:
    driver = load(state_slots=12, max_running=4)
    text = said(1, 50)
    played(driver, text, session="a", max_new_tokens=2)
    for n in range(15):
        text[n] = 32 + n
        result = played(driver, text, session="a", base="a", offset=0, max_new_tokens=2)
        assert result.finish is FinishReason.LENGTH
    for n in range(30):
        names = [
            driver.request([40 + k], session=f"f{n}-{k}", base="a", offset=51, max_new_tokens=1)
            for k in range(4)
        ]
        driver.run()
        assert all(driver.results[name].finish is FinishReason.LENGTH for name in names)
    start = driver.results[names[0]].start
    assert start is not None
    assert start.cached_tokens == 51
    driver.engine.check()


def test_more_turns_than_slots_are_refused_at_the_start() -> None:
    with pytest.raises(LoadError, match="state_slots is 4 and max_running 8"):
        load(state_slots=4)


@pytest.mark.tail
def test_a_tenant_that_floods_with_one_token_sessions_keeps_to_its_share_of_slots() -> None:
    """Its neighbour finds the end of each of its sessions, gets slots up to its own share, and a
    token at each step beside few of the flood's."""
    driver = load(state_slots=24, max_running=6, prefill_tokens_beside_decodes=64)
    cache = driver.engine.memory.cache
    held = {}
    for n in range(9):
        text = said(n, 40)
        held[f"q{n}"] = text + played(driver, text, session=f"q{n}", tenant="quiet").tokens
    long, number, gaps, beside = (
        driver.request(said(50, 30), tenant="quiet", max_new_tokens=90),
        0,
        [],
        [],
    )
    while driver.results[long].finish is None:
        for _ in range(4):
            number += 1
            driver.request(said(1000 + number, 20), tenant="flood", max_new_tokens=1)
        tokens = len(driver.results[long].tokens)
        driver.step()
        if tokens:
            gaps.append(len(driver.results[long].tokens) - tokens)
            assert driver.last_stats is not None
            beside.append(sum(driver.last_stats.steps_prefill_tokens))
    flood, quiet = cache.tree.account("flood"), cache.tree.account("quiet")
    assert sum(gaps) >= 0.9 * len(gaps), "a token a step"
    assert max(beside) <= 64
    assert flood.state_slots >= 10, "a flood that has come"
    for session, tokens in held.items():
        result = played(
            driver, said(3, 4), session=session, base=session, offset=len(tokens), tenant="quiet"
        )
        assert result.start is not None
        assert result.start.cached_tokens == len(tokens) - 1, session
    for n in range(20):
        played(driver, said(200 + n, 30), session=f"more{n}", tenant="quiet", max_new_tokens=2)
        driver.request(said(2000 + n, 20), tenant="flood", max_new_tokens=1)
    assert 11 <= quiet.state_slots <= 13
    assert 11 <= flood.state_slots <= 13
