"""Clients that come back to another server of the journal than the one that runs their turn."""

import asyncio
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.messages import Residency
from sessions.durable.ledger import Unsettled
from sessions.journal.errors import JournalElsewhere
from sessions.journal.ownership import DEAD_MS, Ownership
from sessions.turns.commits import residency_record
from sessions.turns.wanted import Recalled
from sessions.wire import journal_desk
from tests.support.journal_rig import FINGERPRINT, JournalRig
from tests.support.journals import assert_books_agree
from tests.support.sessions_rig import END, Client
from tests.support.timed_journal import TimedJournal
from tests.unit.sessions.wire.test_journal_desk import Bench, run
from tests.unit.sessions.wire.test_journal_desk import Client as BenchClient

CREATE: dict[str, Any] = {
    "input": "Weather?",
    "keepwarm": {"session": "s", "request_id": "r1", "on_disconnect": "continue"},
}
ELSEWHERE = "response_runs_elsewhere"


@dataclass
class Pair:
    """Two servers over one file, and the clock of their database."""

    here: JournalRig
    there: JournalRig
    shown: list[int]
    """What that clock shows, in milliseconds."""

    def here_dies(self) -> None:
        self.shown[0] += DEAD_MS + 1
        beat(self.there)


def beat(rig: JournalRig) -> None:
    assert rig.journal.ownership is not None
    rig.journal.ownership.beat()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    shown = [1000]
    journals = [
        TimedJournal(
            tmp_path / "j", lambda: shown[0], fingerprint=FINGERPRINT, owner=owner, shared=True
        )
        for owner in ("here", "there")
    ]
    made = Pair(*map(JournalRig, journals), shown)
    made.there.numbers = made.here.numbers
    for journal in journals:
        assert journal.ownership is not None
        journal.ownership.beat()
    yield made
    for journal in journals:
        journal.close()


def ask(client: Client, how: str, response_id: str = "") -> dict[str, Any]:
    """Come back for a turn in one of the three ways; the last event that comes of it."""
    if how == "create":
        client.create(**CREATE)
    elif how == "by request":
        client.send(type="keepwarm:response.resume", request_id="r1", after_sequence=1)
    else:
        client.send(type="keepwarm:response.resume", response_id=response_id, after_sequence=1)
    return client.last


def code(event: dict[str, Any]) -> str:
    assert event["type"] == "error", event
    return event["error"]["code"]


WAYS = pytest.mark.parametrize("how", ["create", "by request", "by response"])


@WAYS
def test_a_turn_that_ended_at_one_server_is_its_last_event_at_another(pair: Pair, how: str) -> None:
    told = pair.here.connect()
    told.turn("21" + END, **CREATE)
    again = pair.there.connect()
    assert ask(again, how, told.response["id"]) == told.last
    assert len(again.events) == 1
    assert again.connection.num_active == 0
    assert not pair.there.engine.requests, "nothing started"
    assert take(pair.here), "the other has not kept the id"
    again.create(**CREATE | {"input": "Other?"})
    assert code(again.last) == "request_id_reused"


@WAYS
def test_a_turn_that_runs_at_one_server_is_named_so_at_another(pair: Pair, how: str) -> None:
    told = pair.here.connect()
    told.create(**CREATE)
    pair.here.emit("2")
    again = pair.there.connect()
    for _ in range(2):
        refused = ask(again, how, told.events[0]["response"]["id"])
        assert code(refused) == ELSEWHERE
        assert refused["status"] == 409
        assert refused["error"]["keepwarm"] == {"retry_after_ms": 1000}
    other = pair.there.connect("other")
    other.send(type="keepwarm:response.resume", request_id="r1")
    assert code(other.last) == "response_not_found", "another tenant's id"
    with pytest.raises(JournalElsewhere):
        pair.there.recollection.read_response(
            pair.there.store.tenant("acme"), told.events[0]["response"]["id"]
        )
    assert not pair.there.recollection.read_response(pair.there.store.tenant("acme"), "none").chains
    own = pair.here.journal.ownership
    assert own is not None
    assert own.wanted() == [], "who only looks does not take the session away"
    assert again.connection.num_active == 0
    assert not pair.there.engine.requests, "nothing started"
    pair.here.reply("1" + END)
    assert told.last["type"] == "response.completed"
    assert ask(again, how, told.response["id"]) == told.last
    session = pair.here.journal.session("acme", "s")
    assert session is not None
    assert session.account.turns == 1


def test_a_server_that_was_thought_dead_and_lives_is_named_too(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ownership, "held_elsewhere", lambda *_: False)
    pair.here.connect().create(**CREATE)
    again = pair.there.connect()
    assert code(ask(again, "by request")) == ELSEWHERE


def waiting(pair: Pair) -> tuple[Client, Client]:
    """Two clients of one session: the turn of one runs, the other's request waits for it."""
    first, second = pair.here.connect(), pair.here.connect()
    first.create(input="First?", keepwarm={"session": "s"})
    second.create(**CREATE)
    assert second.events == []
    return first, second


@pytest.mark.parametrize("how", ["create", "by request"])
def test_a_request_that_waits_at_one_server_starts_at_no_other(pair: Pair, how: str) -> None:
    _, second = waiting(pair)
    again = pair.there.connect()
    assert code(ask(again, how)) == ELSEWHERE
    pair.here.reply("1" + END)
    pair.here.reply("2" + END)
    assert second.last["type"] == "response.completed"
    assert ask(again, how) == second.last
    assert not pair.there.engine.requests


def test_an_id_of_which_nothing_came_is_free_at_every_server(pair: Pair) -> None:
    first, second = waiting(pair)
    second.disconnect()
    pair.here.reply("1" + END)
    refused = pair.here.connect()
    refused.create(**CREATE | {"previous_response_id": "resp_none"})
    assert code(refused.last) == "previous_response_not_found"
    pair.here.store.tenant("acme").forget_session("s")
    pair.here.journal.release("acme", ["s"], unasked=True)
    again = pair.there.connect()
    assert again.turn("2" + END, **CREATE)["status"] == "completed"
    assert first.response["id"] != again.response["id"]


def test_an_id_of_a_turn_that_nothing_is_recorded_of_is_free_at_every_server(pair: Pair) -> None:
    client = pair.here.connect()
    broke = {"session": "s", "request_id": "r1", "budget": {"output": 0}}
    client.create(**CREATE | {"keepwarm": broke})
    assert client.last["type"] == "response.failed"
    assert pair.here.journal.turn_of_request("acme", "r1") is None
    again = pair.there.connect()
    assert again.turn("2" + END, **CREATE)["status"] == "completed"


def test_an_id_that_came_when_its_client_was_gone_is_free_unless_another_bears_it(
    pair: Pair,
) -> None:
    gone = pair.here.connect()
    for _ in range(2):
        take(pair.here)
        outcome = Recalled(taken_id="r1")
        pair.here.carry(gone, gone.connection.answer("a lookup that is over", outcome))
        assert take(pair.there)
        free(pair.there)
    pair.here.connect().create(**CREATE)
    pair.here.carry(gone, gone.connection.answer("a lookup that is over", outcome))
    assert not take(pair.there)


def take(rig: JournalRig, request_id: str = "r1") -> bool:
    assert rig.journal.ownership is not None
    return rig.journal.ownership.claim_request("acme", request_id)


def free(rig: JournalRig, request_id: str = "r1") -> None:
    assert rig.journal.ownership is not None
    rig.journal.ownership.free_requests("acme", [request_id])


def test_a_request_that_waited_at_a_server_that_died_starts_at_another(pair: Pair) -> None:
    waiting(pair)
    pair.here_dies()
    again = pair.there.connect()
    assert again.turn("2" + END, **CREATE)["status"] == "completed"
    assert again.response["keepwarm"]["turn"] == 2, "the turn it waited for was cut short"


@WAYS
def test_a_turn_that_ran_at_a_server_that_died_has_failed_at_another(pair: Pair, how: str) -> None:
    told = pair.here.connect()
    told.create(**CREATE)
    pair.here.emit("2")
    pair.here_dies()
    again = pair.there.connect()
    for _ in range(2):
        ended = ask(again, how, told.events[0]["response"]["id"])
        assert ended["type"] == "response.failed"
        assert ended["response"]["keepwarm"]["reason"] == "server_died"
    assert take(pair.there), "the id is nobody's any more"


def lets_go(rig: JournalRig, session: str) -> None:
    """As of a session that another server asks for."""
    rig.store.tenant("acme").forget_session(session)
    rig.journal.release("acme", [session], unasked=True)


def test_a_child_names_its_parent_again_that_has_moved_to_another_server(pair: Pair) -> None:
    root = {"session": "root", "budget": {"scope": "tree", "output": 100}}
    child = {"session": "child", "parent_session": "root"}
    pair.here.connect().turn("one" + END, input="a", keepwarm=root)
    before = pair.here.connect().turn("two" + END, input="b", keepwarm=child)
    left = before["keepwarm"]["budget"]["tree"]["output"]
    lets_go(pair.here, "root")
    pair.there.connect().turn("six" + END, input="c", keepwarm={"session": "root"})
    again = pair.here.connect().turn("ten" + END, input="d", keepwarm=child)
    assert again["status"] == "completed"
    assert again["keepwarm"]["budget"]["tree"]["output"] == left - 2 * len("sixE")
    other = pair.here.connect()
    other.create(input="e", keepwarm=child | {"parent_session": "other"})
    assert "is a part of 'root' already" in other.last["error"]["message"]


@pytest.mark.parametrize("names_parent", [True, False])
@pytest.mark.parametrize("was_here", [True, False])
def test_a_budget_that_another_server_sets_anew_holds_for_children_here(
    pair: Pair, was_here: bool, names_parent: bool
) -> None:
    child: dict[str, Any] = {"session": "child", "parent_session": "root"}
    first = pair.here if was_here else pair.there

    def root(rig: JournalRig, *output: int) -> None:
        bounds = {"output": output[0]} if output else {}
        budget = {"budget": {"scope": "tree"} | bounds}
        turn = rig.connect().turn("one" + END, input="a", keepwarm={"session": "root"} | budget)
        assert turn["status"] == "completed"

    root(first, 8)
    here = pair.here.connect()
    here.turn("two" + END, input="b", keepwarm=child)
    here.create(input="c", keepwarm=child)
    assert here.response["keepwarm"]["reason"] == "budget_exhausted"
    named = child if names_parent else {"session": "child"}
    lets_go(first, "root")
    for total, left in ((100, 100 - 4 * 4), (24, 0), (200, 200 - 8 * 4)):
        root(pair.there, total)
        again = here.turn("six" + END, input="d", keepwarm=named)
        assert again["keepwarm"]["budget"]["tree"]["output"] == left
    root(pair.there)
    assert "tree" not in here.turn("ten" + END, input="e", keepwarm=named)["keepwarm"]["budget"]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_session_that_was_only_read_as_a_parent_is_claimed_for_a_turn_in_it(
    pair: Pair, by_name: bool
) -> None:
    root = {"session": "root", "budget": {"scope": "tree", "output": 100}}
    client = pair.here.connect()
    first = client.turn("one" + END, input="a", keepwarm=root)
    child = {"session": "child", "parent_session": "root"}
    fork = pair.there.connect()
    fork.turn("two" + END, previous_response_id=first["id"], input="b", keepwarm=child)
    client.turn("six" + END, input="c", keepwarm=root)
    lets_go(pair.here, "root")
    fork.turn("ten" + END, input="d", keepwarm={"session": "child"})
    read = pair.there.store.tenant("acme").known_session("root")
    said = {"keepwarm": {"session": "root"}} if by_name else {"previous_response_id": first["id"]}
    third = pair.there.connect().turn("end" + END, input="e", **said)
    assert third["status"] == "completed"
    assert third["keepwarm"]["turn"] == 3
    assert pair.there.store.tenant("acme").known_session("root") is read, "its children draw on it"
    assert third["keepwarm"]["budget"]["tree"]["output"] == 100 - 5 * len("endE")
    again = pair.there.connect().turn("yes" + END, input="f", keepwarm={"session": "root"})
    assert again["previous_response_id"] == third["id"]


def test_kv_of_a_session_that_its_server_forgot_and_has_still_is_a_row_of_its_own(
    pair: Pair,
) -> None:
    """As after a stop, or where a heartbeat waited for the file: nobody has taken the session."""
    client, store, own = pair.here.connect(), pair.here.store, {"keepwarm": {"session": "s"}}
    first = client.turn(input="hi", **own)
    kept = Residency(branch_id=pair.here.engine.last.branch_id, block_us=7, gone=False)
    client.turn(input="go on", previous_response_id=first["id"], **own)
    assert not store.residents.told([kept]).ended
    store.tenant("acme").forget_session("s")
    client.turn(input="fork", previous_response_id=first["id"], **own)
    (old,) = store.residents.told([kept]).ended
    unsettled = old.ledger.settle_residency()
    record = residency_record(old, unsettled, record_id="kv_1", created_s=1.0)
    assert pair.here.journal.append([record]) == [True], "it is the owner's, of the same epoch"
    session = pair.here.journal.session("acme", "s")
    assert session is not None
    assert_books_agree(session, pair.here.journal.session_turns("acme", "s"))
    assert (session.account.turns, session.head_seq, session.epoch) == (3, 4, 1)
    assert session.account.usage.residency == 7


@pytest.mark.parametrize("refused", [True, False])
def test_kv_of_a_session_without_turns_is_its_own_and_of_a_deleted_one_nobodys(
    pair: Pair, refused: bool
) -> None:
    """In the journal, neither has a turn: what the server knows of it tells them apart."""
    if not refused:
        pair.here.connect().turn(input="hi", keepwarm={"session": "s"})
    session = pair.here.store.tenant("acme").session("s")
    if not refused:
        pair.here.journal.delete_session("acme", "s")
    record = residency_record(session, Unsettled(7, 3), record_id="kv_1", created_s=1.0)
    assert pair.here.journal.append([record]) == [True]
    found = pair.here.journal.session("acme", "s")
    assert (found is None) != refused
    assert found is None or found.account.cost == 3


def test_a_session_is_claimed_that_was_remembered_by_a_response_alone(pair: Pair) -> None:
    client = pair.here.connect()
    first = client.turn("one" + END, input="a", keepwarm={"session": "s"})
    lets_go(pair.here, "s")
    stored = pair.here.store.tenant("acme").responses.get(first["id"])
    assert stored is not None
    pair.there.connect().turn("two" + END, input="b", keepwarm={"session": "s"})
    lets_go(pair.there, "s")
    pair.here.store.tenant("acme").ancestor_session(stored.session.name)
    third = pair.here.connect().turn("six" + END, input="c", keepwarm={"session": "s"})
    assert third["status"] == "completed"
    assert third["keepwarm"]["turn"] == 3


@pytest.mark.parametrize("named", ["response", "in a fork", "head", "item", "place"])
def test_what_another_server_deleted_is_not_gone_on_from_here(pair: Pair, named: str) -> None:
    client = pair.here.connect()
    first = client.turn("one" + END, input="a", keepwarm={"session": "s"})
    second = client.turn("two" + END, input="b", keepwarm={"session": "s"})
    own = {"keepwarm": {"session": "fork"}}
    item = {"type": "item_reference", "id": second["output"][0]["id"]}
    place = {"type": "item_reference", "id": f"msg_0_{second['id'].removeprefix('resp_')}"}
    request: dict[str, Any] = {
        "response": {"previous_response_id": second["id"]},
        "in a fork": {"previous_response_id": second["id"]} | own,
        "head": {"keepwarm": {"session": "s"}},
        "item": {"input": [item, {"role": "user", "content": "c"}]} | own,
        "place": {"input": [place, {"role": "user", "content": "c"}]} | own,
    }[named]
    request = {"input": "c"} | request
    trial = pair.here.connect().turn("try" + END, **request | own, store=False)
    assert trial["status"] == "completed"
    assert pair.there.journal.hide("acme", second["id"])
    if named == "head":
        assert client.turn("six" + END, **request)["previous_response_id"] is None
    else:
        client.create(**request)
        assert code(client.last) in ("previous_response_not_found", "item_not_found")
    pair.here.connect().turn("six" + END, input="d", previous_response_id=first["id"])
    session = pair.here.journal.session("acme", "s")
    assert session is not None
    assert_books_agree(session, pair.here.journal.session_turns("acme", "s"))


def test_the_end_of_a_turn_that_runs_at_another_server_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_desk, "POLL_S", 0.001)

    async def scenario() -> None:
        ids = itertools.count(1)
        benches = [Bench(tmp_path / "j", ids, owner, shared=True) for owner in ("a", "b")]
        for bench in benches:
            assert bench.journal.ownership is not None
            monkeypatch.setattr("sessions.journal.ownership.DEAD_MS", 10**9)
            bench.journal.ownership.beat()
        here, there = benches
        here.engine.holds = True
        first = asyncio.create_task(BenchClient(here).turn(**CREATE))
        while not here.engine.waiting:
            await asyncio.sleep(0)
        again = asyncio.create_task(BenchClient(there).turn(**CREATE))
        looks: list[int] = []
        found = there.journal.turn_of_request

        def looked(tenant: str, request_id: str) -> Any:
            looks.append(1)
            return found(tenant, request_id)

        monkeypatch.setattr(there.journal, "turn_of_request", looked)
        while len(looks) < 3:
            await asyncio.sleep(0.001)
        assert not again.done()
        here.engine.speak()
        assert (await first)["type"] == "response.completed"
        assert await again == await first
        assert not there.engine.waiting
        monkeypatch.setattr(journal_desk, "ELSEWHERE_S", 0.0)
        other = CREATE | {"keepwarm": {"request_id": "r2"}}
        longer = asyncio.create_task(BenchClient(here).turn(**other))
        while not here.engine.waiting:
            await asyncio.sleep(0)
        refused = await BenchClient(there).turn(**other)
        assert refused["error"]["code"] == ELSEWHERE
        here.engine.speak()
        assert (await longer)["type"] == "response.completed"
        for bench in benches:
            await bench.close()

    run(scenario)


def test_an_id_that_is_sent_again_while_it_is_being_freed_is_taken_behind_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go, order = threading.Event(), list[str]()
    real_free, real_take = Ownership.free_requests, Ownership.claim_request

    def freed(own: Ownership, tenant: str, ids: Sequence[str]) -> None:
        may_go.wait()
        real_free(own, tenant, ids)
        order.append("freed")

    def taken(own: Ownership, tenant: str, request_id: str) -> bool:
        order.append("taken")
        return real_take(own, tenant, request_id)

    monkeypatch.setattr(Ownership, "free_requests", freed)
    monkeypatch.setattr(Ownership, "claim_request", taken)

    async def scenario() -> None:
        bench = Bench(tmp_path / "j", itertools.count(1), "a", shared=True)
        client = BenchClient(bench)
        refused = await client.turn(**CREATE | {"previous_response_id": "resp_none"})
        assert refused["error"]["code"] == "previous_response_not_found"
        again = asyncio.create_task(client.turn(**CREATE))
        for _ in range(100):
            await asyncio.sleep(0)
        may_go.set()
        assert (await again)["type"] == "response.completed"
        assert order == ["taken", "freed", "taken"]
        await bench.close()

    run(scenario)
