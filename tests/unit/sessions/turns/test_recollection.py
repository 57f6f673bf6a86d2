"""Turns that outlive their server: what fell out of memory equals what comes back."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessions.durable.transcript import Entry, chain_ids
from sessions.journal.errors import JournalBusy, JournalDamaged, JournalUnavailable
from sessions.journal.journal import Journal
from sessions.journal.records import PARENT_DELETED
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.writer import STALE, Verdict
from tests.support.journal_rig import FINGERPRINT, JournalRig
from tests.support.journals import assert_same_chain
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import END, Client, call, tool
from tools_api.limits import Limits

PRIVATE = "the secret of a private turn"


@pytest.fixture(params=["memory", "sqlite"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    journal: Journal = MemoryJournal(b"f")
    if request.param == "sqlite":
        journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    yield JournalRig(journal, prices=None)
    journal.close()


def entry_of(rig: JournalRig, response_id: str, tenant: str = "acme") -> Entry:
    stored = rig.store.tenant(tenant).responses.get(response_id)
    assert stored is not None
    return stored.entry


def test_a_chain_goes_on_after_a_restart_with_the_same_tokens(rig: JournalRig) -> None:
    client = rig.connect()
    first = client.turn("one" + END, input="a", instructions="be brief")
    second = client.turn("two" + END, previous_response_id=first["id"], input="b",
                         instructions="be brief")  # fmt: skip
    before = entry_of(rig, second["id"])
    rig.restart()
    client = rig.connect()
    client.create(previous_response_id=second["id"], input="c", instructions="be brief")
    assert rig.lookups == 1
    asked = rig.engine.last
    ids = chain_ids(before.header, before, before.input_ids[:0]).tolist()
    assert asked.new_tokens.tolist()[: len(ids)] == ids
    rig.reply("three" + END)
    assert client.response["status"] == "completed"
    assert client.response["keepwarm"]["turn"] == 3
    third = entry_of(rig, client.response["id"])
    assert_same_chain(third.parent, before)


def test_a_session_goes_on_by_its_name_with_its_account_and_budget(rig: JournalRig) -> None:
    client = rig.connect()
    named = {"session": "s", "budget": {"output": 100}}
    client.turn("one" + END, input="a", keepwarm=named)
    left = client.response["keepwarm"]["budget"]["left"]
    rig.restart()
    client = rig.connect()
    again = client.turn("two" + END, input="b", keepwarm={"session": "s"})
    assert again["previous_response_id"] is not None
    assert again["keepwarm"]["turn"] == 2
    assert again["keepwarm"]["budget"]["left"]["output"] == left["output"] - 4


@pytest.mark.parametrize(("age_s", "state"), [(3600.0, "waiting_for_tools"), (3601.0, "idle")])
def test_a_session_whose_tools_never_answered_is_waited_for_no_longer_than_in_memory(
    rig: JournalRig, age_s: float, state: str
) -> None:
    parent = {"session": "root"}
    rig.connect().turn(call("f") + END, input="a", tools=[tool("f")], keepwarm=parent)
    rig.restart()
    ended_s = rig.service.wall_clock()
    rig.recollection.wall_clock = lambda: ended_s + age_s
    child = {"session": "child", "parent_session": "root"}
    rig.connect().turn("two" + END, input="b", keepwarm=child)
    states = {view.session: view.state for view in rig.store.sessions()[1]}
    assert states == {"root": state, "child": "idle"}


def test_a_tree_of_sessions_has_spent_what_it_spent_before(rig: JournalRig) -> None:
    tree = {"session": "root", "budget": {"scope": "tree", "output": 20}}
    rig.connect().turn("one" + END, input="a", keepwarm=tree)
    child = {"session": "child", "parent_session": "root"}
    rig.connect().turn("two" + END, input="b", keepwarm=child)
    for restarted in (False, True):
        if restarted:
            rig.restart()
        client = rig.connect()
        client.turn("thr" + END, input="c", keepwarm={"session": "child"})
        assert client.response["status"] == "completed"
    spent = rig.store.tenant("acme").session("root").ledger.tree.spent
    assert spent.output == 16
    rig.restart()
    client = rig.connect()
    client.create(input="d", keepwarm={"session": "other", "parent_session": "root"})
    assert rig.engine.last.max_new_tokens == 4


def test_a_history_that_is_resent_is_found_after_a_restart(rig: JournalRig) -> None:
    client = rig.connect()
    said: list[Any] = [{"role": "user", "content": "a"}]
    first = client.turn("one" + END, input=said)
    rig.restart()
    client = rig.connect()
    said += [*first["output"], {"role": "user", "content": "b"}]
    again = client.turn("two" + END, input=said)
    assert again["previous_response_id"] == first["id"]
    client.turn(input=[{"role": "user", "content": "never said"}])
    assert client.response["previous_response_id"] is None


def test_an_unknown_response_and_another_tenants_are_refused_alike(rig: JournalRig) -> None:
    mine = rig.connect().turn(input="a")
    rig.restart()
    refusals = []
    for response_id in (mine["id"], "resp_unknown"):
        client = rig.connect("other")
        client.create(previous_response_id=response_id, input="b")
        refusals.append((client.last["error"]["code"], client.last["status"]))
    assert refusals == [("previous_response_not_found", 400)] * 2


def test_the_last_event_waits_for_the_record_and_tokens_do_not(rig: JournalRig) -> None:
    rig.hold = True
    client = rig.connect()
    client.create(input="a")
    rig.reply("one" + END)
    assert "output_item.done" in client.types()
    assert "completed" not in client.types()
    assert client.connection.num_active == 1
    client.create(input="b")
    assert client.types()[-1] != "created"
    rig.commit()
    assert client.types().count("completed") == 1
    assert client.types()[-1] == "in_progress" or "created" in client.types()[-2:]


def test_a_turn_whose_record_is_refused_fails_and_cannot_be_continued(rig: JournalRig) -> None:
    rig.hold = True
    client = rig.connect()
    for verdict, reason in (
        (STALE, "session_moved"),
        (Verdict(written=False, reason="unavailable"), "journal_unavailable"),
    ):
        client.create(input="a", keepwarm={"session": "s"})
        rig.reply("one" + END)
        numbers = [
            event["sequence_number"] for event in client.events if "sequence_number" in event
        ]
        rig.commit(verdict)
        assert client.last["type"] == "response.failed"
        assert client.last["sequence_number"] == numbers[-1] + 1
        assert client.response["status"] == "failed"
        assert client.response["keepwarm"]["reason"] == reason
        failed = client.response["id"]
        client.create(previous_response_id=failed, input="b")
        assert client.last["error"]["code"] == "previous_response_not_found"
    assert len(rig.store.running) == 0
    assert len(rig.store.branches) == 0


@pytest.mark.parametrize("fork", [False, True])
def test_a_parent_that_was_deleted_is_forgotten_and_so_is_its_session(
    rig: JournalRig, fork: bool
) -> None:
    client = rig.connect()
    first = client.turn("one" + END, input="a", keepwarm={"session": "s"})
    other = client.turn("two" + END, input="b", keepwarm={"session": "other"})
    rig.hold = True
    name = {"session": "other" if fork else "s"}
    client.create(input="c", previous_response_id=first["id"], keepwarm=name)
    rig.reply("three" + END)
    rig.commit(Verdict(written=False, reason=PARENT_DELETED))
    assert client.response["keepwarm"]["reason"] == PARENT_DELETED
    assert rig.store.tenant("acme").responses.get(first["id"]) is None
    assert (rig.store.tenant("acme").known_session("s") is None) == (not fork)
    kept = rig.store.tenant("acme").known_session("other")
    assert kept is not None
    assert kept.head_id == other["id"]


def test_a_client_that_goes_while_its_record_is_written_finds_the_turn(rig: JournalRig) -> None:
    rig.hold = True
    client = rig.connect()
    client.create(input="a")
    rig.reply("one" + END)
    client.disconnect()
    rig.kill_engine()
    rig.commit()
    response_id = rig.reports[-1].response_id
    assert rig.reports[-1].status == "completed"
    rig.hold = False
    again = rig.connect().turn("two" + END, previous_response_id=response_id, input="b")
    assert again["status"] == "completed"


def test_nothing_that_a_private_turn_said_is_in_the_journal(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    rig = JournalRig(journal)
    client = rig.connect()
    private = client.turn(PRIVATE + END, input=PRIVATE, store=False, instructions=PRIVATE)
    client.turn("more" + END, previous_response_id=private["id"], input="b", store=False)
    journal.close()
    for file in tmp_path.iterdir():
        assert PRIVATE.encode() not in file.read_bytes(), file
    again = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    assert again.turn("acme", private["id"]) is None
    (session,) = again.sessions("acme")
    assert session.account.turns == 2
    assert session.account.usage.output_tokens == len(PRIVATE) + 1 + len("more") + 1
    again.close()


def test_a_session_of_another_tokenizer_is_unknown_or_rendered_anew(rig: JournalRig) -> None:
    client = rig.connect()
    first = client.turn("one" + END, input="a", instructions="be brief")
    rig.fingerprint = b"other"
    rig.restart()
    client = rig.connect()
    client.create(previous_response_id=first["id"], input="b", instructions="be brief")
    assert client.last["error"]["code"] == "previous_response_not_found"
    rig.retokenise = True
    rig.restart()
    client = rig.connect()
    second = client.turn("two" + END, previous_response_id=first["id"], input="b",
                         instructions="be brief")  # fmt: skip
    assert second["status"] == "completed"
    kept = entry_of(rig, second["id"])
    said = [item.to_wire() for item in (*kept.input_items, *kept.output_items)]
    assert kept.parent is not None
    assert len(kept.parent.input_items) == 2
    assert said[-1]["content"][0]["text"] == "two"
    rig.journal.fingerprint = b"other"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JournalBusy("held"), "server_is_overloaded"),
        (JournalUnavailable("/a/path: locked"), "server_is_overloaded"),
        (JournalDamaged("torn"), None),
    ],
)
def test_a_journal_that_cannot_be_asked_refuses_the_turn(
    rig: JournalRig, error: Exception, code: str | None
) -> None:
    def broken(*_: object) -> Any:
        raise error

    rig.recollection.read = broken  # type: ignore[method-assign]
    client = rig.connect()
    client.create(previous_response_id="resp_1", input="b")
    assert client.last["error"]["code"] == code
    assert "/a/path" not in json.dumps(client.last)
    assert client.connection.num_active == 0


# All kinds of turns


def say(client: Client, reply: str, **fields: Any) -> dict[str, Any]:
    """A turn, or its refusal: a response that waits for outputs of calls is not continued."""
    client.create(**fields)
    if client.last["type"] == "error":
        return {"output": []}
    client.rig.reply(reply)
    return client.response


Play = Callable[[Client, random.Random, list[str]], None]


def plain(client: Client, chance: random.Random, known: list[str]) -> None:
    say(client, f"answer {chance.random()}\u2028é" + END, input="plain", **behind(chance, known))


def cut_short(client: Client, chance: random.Random, known: list[str]) -> None:
    say(client, "cut", input="short", max_output_tokens=3, **behind(chance, known))


def warm_up(client: Client, chance: random.Random, known: list[str]) -> None:
    say(client, "", input="warm", generate=False, **behind(chance, known))


def nothing_new(client: Client, chance: random.Random, known: list[str]) -> None:
    say(client, "", input=[], instructions="only", generate=False)


def calling(client: Client, chance: random.Random, known: list[str]) -> None:
    response = say(client, call("look", '{"b": 1.50}') + END, input="call", tools=[tool("look")],
                           **behind(chance, known))  # fmt: skip
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "seen \x00"}
        for item in calls
    ]
    if outputs and chance.random() < 0.7:
        say(client, "so" + END, input=outputs, tools=[tool("look")],
                    previous_response_id=response["id"])  # fmt: skip


def truncating(client: Client, chance: random.Random, known: list[str]) -> None:
    say(client, "kept" + END, input="long " * 120, truncation="auto", **behind(chance, known))


def named(client: Client, chance: random.Random, known: list[str]) -> None:
    say(client, "named" + END, input="n", keepwarm={"session": f"s{chance.randrange(3)}"})


def forked(client: Client, chance: random.Random, known: list[str]) -> None:
    name = {"session": f"f{chance.randrange(3)}"}
    say(client, "forked" + END, input="f", keepwarm=name, **behind(chance, known))


def with_system(client: Client, chance: random.Random, known: list[str]) -> None:
    said = [{"role": "system", "content": "rules"}, {"role": "user", "content": "u"}]
    say(client, "ruled" + END, input=said)


def stopped(client: Client, chance: random.Random, known: list[str]) -> None:
    client.create(input="stop me", **behind(chance, known))
    if client.last["type"] == "error":
        return
    client.rig.emit("half")
    client.send(type="response.cancel")


def left(client: Client, chance: random.Random, known: list[str]) -> None:
    other = client.rig.connect()
    other.create(input="gone", **behind(chance, known))
    if other.last["type"] != "error":
        client.rig.emit("half")
    other.disconnect()


def behind(chance: random.Random, known: list[str]) -> dict[str, str]:
    return {"previous_response_id": chance.choice(known)} if known and chance.random() < 0.8 else {}


KINDS: list[Play] = [
    plain, cut_short, warm_up, nothing_new, calling, truncating, named, forked, with_system,
    stopped, left,
]  # fmt: skip


@pytest.mark.samples(2)
@pytest.mark.parametrize("seed", range(4))
def test_of_every_kind_of_turn_what_is_loaded_equals_what_fell_out(
    rig: JournalRig, seed: int
) -> None:
    """Half of the turns continue one that had to be loaded."""
    chance = random.Random(seed)
    rig.options["limits"] = Limits()
    rig.options["max_context_tokens"] = 1500
    rig.restart()
    kept: dict[str, Entry] = {}
    wires: dict[str, bytes] = {}
    for _ in range(60):
        client = rig.connect()
        chance.choice(KINDS)(client, chance, list(kept))
        table = rig.store.tenant("acme").responses
        for response_id in [each.id for each in table]:
            stored = table.get(response_id)
            if stored is not None and response_id not in kept:
                kept[response_id], wires[response_id] = stored.entry, stored.wire
        if chance.random() < 0.3:
            rig.restart()
    assert len(kept) > 20
    rig.restart()
    for response_id, entry in kept.items():
        acme = rig.store.tenant("acme")
        rig.recollection.remember(acme, rig.recollection.read_response(acme, response_id))
        stored = rig.store.tenant("acme").responses.get(response_id)
        assert stored is not None
        assert_same_chain(stored.entry, entry)
        assert stored.wire == wires[response_id]
    charged = sum(session.account.cost for session in rig.journal.sessions())
    assert charged == sum(report.cost for report in rig.reports)
    turns = sum(session.account.turns for session in rig.journal.sessions())
    assert turns == len(rig.reports)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[JournalRig, SqliteJournal]]:
    """A server with clients, and another one's journal over the same file."""
    mine, theirs = (
        SqliteJournal(tmp_path / "j", fingerprint=FINGERPRINT, owner=owner, shared=True)
        for owner in ("mine", "theirs")
    )
    yield JournalRig(mine), theirs
    mine.close()
    theirs.close()


def test_a_request_that_waits_in_a_session_that_moves_away_asks_for_it_anew(
    two: tuple[JournalRig, SqliteJournal],
) -> None:
    rig, theirs = two
    named = {"session": "s", "budget": {"output": 5000}}
    rig.connect().turn("one" + END, input="a", keepwarm=named)
    running, waiting = rig.connect(), rig.connect()
    running.create(input="b", keepwarm={"session": "s"})
    waiting.create(input="c", keepwarm={"session": "s"})
    assert waiting.events == []
    assert theirs.claim("acme", "s", 0.0) is not None, "no heartbeat: it counts as dead"
    rig.reply("two" + END)
    assert running.response["keepwarm"]["reason"] == "session_moved"
    rig.reply("six" + END)
    assert waiting.response["status"] == "completed"
    told, session = waiting.response["keepwarm"], rig.journal.session("acme", "s")
    assert session is not None
    assert told["turn"] == 3, "that of the turn that was cut short counts"
    assert told["budget"]["left"]["output"] == 5000 - session.account.usage.output_tokens


def test_a_plan_whose_session_falls_out_meanwhile_counts_what_that_has_spent(
    rig: JournalRig,
) -> None:
    client = rig.connect()
    named = {"session": "s", "budget": {"output": 10}}
    first = client.turn("one" + END, input="a", keepwarm=named)
    rig.checks_pass = False
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    asked = {"previous_response_id": first["id"], "text": {"format": schema}}
    client.create(input="b", **asked)
    rig.store.tenant("acme").forget_session("s")
    rig.checks_pass = True
    ((_, check),) = rig.checks
    rig.carry(client, client.connection.answer(check.id, None))
    assert rig.engine.last.max_new_tokens == 6


def test_a_session_that_comes_back_for_others_was_active_when_its_last_turn_ended(
    rig: JournalRig,
) -> None:
    rig.connect().turn("one" + END, input="a", keepwarm={"session": "root"})
    rig.restart()
    ended_s = rig.service.wall_clock()
    rig.recollection.wall_clock = lambda: ended_s + 5000.0
    child = {"session": "child", "parent_session": "root"}
    rig.connect().turn("two" + END, input="b", keepwarm=child)
    views = rig.store.sessions()[1]
    assert [view.session for view in views] == ["child", "root"]
    assert views[1].idle_s >= 5000.0 > views[0].idle_s
    rig.store.sweep()
    assert len(rig.store.sessions()[1]) == 2, "it is of use, however old"


def test_budgets_of_sessions_that_came_back_are_shown_as_before(rig: JournalRig) -> None:
    tree = {"session": "root", "budget": {"scope": "tree", "output": 20}}
    rig.connect().turn("one" + END, input="a", keepwarm=tree)
    child = {"session": "child", "parent_session": "root", "budget": {"output": 10}}
    rig.connect().turn("two" + END, input="b", keepwarm=child)

    def used() -> dict[str, int]:
        budgets = {view.session: view.budgets[-1] for view in rig.store.sessions()[1]}
        return {name: each.limit["output"] - each.left["output"] for name, each in budgets.items()}

    before = used()
    rig.restart()
    rig.connect().create(input="c", keepwarm={"session": "child"})
    rig.reply("" + END)
    assert used() == {name: spent + 1 for name, spent in before.items()}
    (child_view,) = (view for view in rig.store.sessions()[1] if view.session == "child")
    assert [(each.scope, each.owner) for each in child_view.budgets] == [
        ("session", "child"),
        ("tree", "root"),
    ]
