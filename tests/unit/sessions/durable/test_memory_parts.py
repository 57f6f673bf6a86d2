"""What a server says that its parts hold: nothing once all is gone, and about what they do hold."""

import gc
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from runtime.drafting.sources import BranchTexts
from runtime.engine.branch_tokens import BranchTokens
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.durable.response_table import ResponseTable
from sessions.durable.session import Session
from sessions.durable.turn_logs import EventLog, EventLogs
from sessions.durable.weights import Tally
from sessions.pages.turn_log import TurnHistory
from tests.support.clock import FakeClock
from tests.support.entries import entry, response
from tests.support.requests import make_request
from tests.support.sessions_rig import Rig
from tests.unit.sessions.pages.test_metrics import report
from tools_api.limits import Limits

TTL_S = 60.0


def grown(work: Callable[[], object]) -> int:
    """Memory that is still taken behind ``work``."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = work()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept is not None
    return after - before


@pytest.mark.parametrize("seed", range(20))
def test_tables_count_together_what_each_holds_and_nothing_at_the_end(seed: int) -> None:
    rng, clock, tally = random.Random(seed), FakeClock(1000.0), Tally()
    tables = [
        ResponseTable(
            max_count=rng.randrange(1, 12),
            max_bytes=rng.randrange(4_000, 40_000),
            ttl_s=TTL_S,
            clock=clock,
            on_drop=lambda _: None,
            tally=tally,
        )
        for _ in range(3)
    ]
    known = [entry()]
    for number in range(200):
        table = rng.choice(tables)
        match rng.randrange(6):
            case 0:
                table.delete(f"r{rng.randrange(number + 1)}")
            case 1:
                clock.advance(rng.uniform(0.0, TTL_S / 4))
                table.expire()
            case 2 if rng.random() < 0.1:
                table.clear()
            case _:
                known.append(entry(rng.choice(known)))
                table.put(response(f"r{number}", known[-1]))
        assert tally.num_bytes == sum(each.num_bytes for each in tables)
    clock.advance(2 * TTL_S)
    for table in tables:
        table.expire()
    assert tally.num_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_logs_hold_nothing_once_all_have_expired(seed: int) -> None:
    rng, clock = random.Random(seed), FakeClock(0.0)
    limits = Limits(
        max_resume_bytes_per_turn=2_000,
        max_resume_bytes_per_tenant=9_000,
        stored_response_ttl_s=TTL_S,
        resume_s=TTL_S / 4,
    )
    logs, running, ended = EventLogs(limits=limits, clock=clock), list[EventLog](), list[EventLog]()
    for number in range(300):
        match rng.randrange(5):
            case 0:
                name = f"q{number}" if rng.random() < 0.5 else None
                log = EventLog(tenant=rng.choice("ab"), owner="c", request_id=name)
                if name is not None:
                    logs.reserve(log)
                logs.start(log, f"resp_{number}", listed=rng.random() < 0.8)
                running.append(log)
            case 1 if running:
                log = running.pop(rng.randrange(len(running)))
                logs.append(log, [b'{"sequence_number":1}'])
                logs.close(log)
                ended.append(log)
            case 2 if ended:
                log = rng.choice(ended)
                if rng.random() < 0.5:
                    logs.delete(log)
                else:
                    logs.continued(log.tenant, str(log.response_id))
            case 3:
                clock.advance(rng.uniform(0.0, TTL_S / 20))
                logs.expire()
            case _ if running:
                logs.append(rng.choice(running), [b"x" * rng.randrange(700)])
        assert logs.num_bytes >= sum(log.num_bytes for log in running)
    for log in running:
        logs.append(log, [b'{"sequence_number":1}'])
        logs.close(log)
    clock.advance(2 * TTL_S)
    logs.expire()
    assert logs.num_bytes == 0


def test_a_server_whose_clients_are_gone_holds_nothing_after_a_while() -> None:
    rig = Rig()
    store = rig.service.store
    clients = [rig.connect() for _ in range(3)]
    for number, client in enumerate(clients):
        for turn in range(4):
            client.turn(
                input=f"turn {turn} of {number}",
                store=number != 1,
                keepwarm={"session": f"s{number}", "request_id": f"r{number}.{turn}"},
            )
    assert store.response_bytes > 0
    assert store.logs.num_bytes > 0
    assert store.session_bytes > 0
    for client in clients:
        client.disconnect()
    rig.clock.advance(2 * store.limits.stored_response_ttl_s)
    store.sweep()
    store.residents.engine_lost()
    assert (store.response_bytes, store.logs.num_bytes, store.session_bytes) == (0, 0, 0)
    assert store.held.total == 0


@pytest.mark.tail
def test_a_big_stored_response_is_told_within_a_third() -> None:
    rig = Rig(max_context_tokens=10**7)
    client, store = rig.connect(), rig.service.store
    client.turn(input="so that what is made once is there")
    before = store.response_bytes + store.logs.num_bytes

    def work() -> Rig:
        client.turn(input="".join(map(chr, range(32, 127))) * 10_000)
        client.events.clear()
        rig.kill_engine()  # what that holds is another process's
        rig.forget_past()
        return rig

    real = grown(work)
    told = store.response_bytes + store.logs.num_bytes - before
    assert told > 900_000
    assert 0.7 <= told / real <= 1.3, (told, real)


@pytest.mark.tail
def test_sessions_are_told_within_a_third() -> None:
    store = Rig().service.store

    def work() -> list[Session]:
        return [store.tenant("t").session(f"session-{number:08d}") for number in range(2000)]

    real = grown(work)
    assert 0.7 <= store.session_bytes / real <= 1.7, (store.session_bytes, real)


@pytest.mark.tail
def test_ended_turns_are_told_within_a_third() -> None:
    history, plain = TurnHistory(), report()

    def work() -> TurnHistory:
        for number in range(4000):
            usage = replace(plain.usage, input_tokens=10**6 + number, cached_tokens=10**6 - number)
            row = replace(
                plain,
                session=f"s{number % 20}",
                turn=number,
                response_id=f"resp_{number:032x}",
                branch_id=f"branch_{number:032x}",
                usage=usage,
                cost=10**9 + number,
                queue_s=number / 3,
                ttft_s=number / 5,
                total_s=number / 7,
                misses=(Miss(reason=MissReason.EVICTED, tokens=10**6 + number),),
            )
            history.add(row, number / 9)
        return history

    real = grown(work)
    assert 0.7 <= history.num_bytes / real <= 1.3, (history.num_bytes, real)


@pytest.mark.parametrize("seed", range(10))
def test_tokens_of_branches_that_are_gone_take_nothing(seed: int) -> None:
    rng, tokens = random.Random(seed), BranchTokens(max_bytes=1 << 16)
    open_, known = list[str](), list[str]()
    for number in range(200):
        match rng.randrange(4):
            case 0 if open_:
                name = open_.pop(rng.randrange(len(open_)))
                tokens.close(name, ran=rng.random() < 0.8)
            case 1 if known:
                tokens.release(known.pop(rng.randrange(len(known))))
            case 2:
                known = [name for name in known if name not in tokens.overflow()]
            case _:
                name = f"b{number}"
                request = make_request(rng.randrange(2000), request_id=name, branch_id=name)
                assert tokens.open(request) is not None
                open_.append(name)
                known.append(name)
        assert (tokens.num_bytes == 0) == (len(tokens) == 0)
    for name in open_:
        tokens.close(name, ran=True)
    for number in range(200):
        tokens.release(f"b{number}")
    assert tokens.num_bytes == 0


@pytest.mark.tail
def test_tokens_of_branches_are_told_within_a_third() -> None:
    tokens = BranchTokens(max_bytes=1 << 40)

    def work() -> BranchTokens:
        for number in range(200):
            name = f"branch_{number:032x}"
            tokens.open(make_request(5000, request_id=name, branch_id=name))
            tokens.close(name, ran=True)
        return tokens

    real = grown(work)
    assert 0.7 <= tokens.num_bytes / real <= 1.3, (tokens.num_bytes, real)


def test_drafts_of_branches_that_are_gone_take_nothing() -> None:
    texts = BranchTexts(max_bytes=1 << 30)
    for number in range(20):
        texts.source(f"b{number}", make_request(100 * number).new_tokens)
    assert texts.num_bytes > 0
    for number in range(20):
        texts.close(f"b{number}")
    assert texts.num_bytes == 0
