"""The journal's promises, of every store alike, and the way of a turn into it and back."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import orjson
import pytest

from sessions.durable.account import Amount, Budget
from sessions.durable.ledger import TurnUsage
from sessions.durable.transcript import Header
from sessions.durable.weights import item_bytes
from sessions.journal import encoding
from sessions.journal.adoption import Loader, link_up
from sessions.journal.encoding import HeaderCache, _join, decode_header, decode_turn, encode_header
from sessions.journal.errors import (
    JournalBusy,
    JournalDamaged,
    JournalError,
)
from sessions.journal.journal import Journal
from sessions.journal.listing import ListAsked
from sessions.journal.mark import MarkFile, read_mark
from sessions.journal.ownership import DEAD_MS, Ownership
from sessions.journal.records import RESIDENCY, TurnRecord, session_account, tree_account
from sessions.journal.rows import read_turn, turn_columns
from sessions.journal.samples import HOUR_S, KEPT, MINUTE_S, Sample
from sessions.journal.shares import Want
from sessions.journal.sql import CHAIN, NAMED, SqlJournal
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.tables import FIRST_EPOCH
from sessions.journal.view import SqliteView
from tests.support.journals import (
    PRICE,
    assert_books_agree,
    assert_same_chain,
    record,
    reservation,
)
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import Rig
from tools_api.chat_format import TemplateOptions
from tools_api.item_reading import parse_items
from tools_api.tools import parse_tools


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    opened: Journal = MemoryJournal(b"f")
    if request.param == "sqlite":
        opened = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    yield opened
    opened.close()


def loader(journal: Journal) -> Loader:
    return Loader(journal, fingerprint=b"f")


def test_a_chain_comes_back_as_it_went_in_across_sessions(journal: Journal) -> None:
    first = record("r1")
    fork = record("r2", parent=first, session="fork")
    assert journal.append([first]) == [True]
    assert journal.append([fork]) == [True]
    loaded = loader(journal).load("t", "r2")
    assert loaded is not None
    assert [turn.row.session for turn in loaded.turns] == ["s", "fork"]
    assert_same_chain(link_up(loaded.turns, lambda _: None), fork.entry)
    assert loaded.head.body.terminal == fork.terminal
    assert loaded.session is not None
    assert loaded.session.head_id == "r2"


def test_what_was_said_comes_back_whatever_characters_it_has(journal: Journal) -> None:
    said = "".join(map(chr, range(160))) + "\u2028\ufffe\U0001f600"
    turn = replace(record("r1", answer=said), options=orjson.dumps({"x": said}))
    assert turn.entry is not None
    header = replace(turn.entry.header, instructions=said)
    terminal = orjson.dumps({"type": "response.completed", "text": said})
    links = (replace(turn.entry, header=header),)
    turn = replace(turn, links=links, terminal=terminal)
    assert journal.append([turn]) == [True]
    loaded = loader(journal).load("t", "r1")
    assert loaded is not None
    assert_same_chain(link_up(loaded.turns, lambda _: None), turn.entry)
    assert loaded.head.body.terminal == terminal
    session = journal.session("t", "s")
    assert session is not None
    assert session.options == turn.options


@pytest.mark.parametrize("name", ["a\0b", "\0", "r1\0"])
def test_by_a_name_that_no_row_can_have_nothing_is_found(journal: SqlJournal, name: str) -> None:
    journal.append([record("r1")])
    for tenant in ("t", name):
        assert journal.session(tenant, name) is None
        assert journal.turn(tenant, name) is None
        assert journal.last_turns(tenant, name, 5) == (0, [])
        assert journal.session_tree(tenant, name, 5) == []
        assert journal.conversation(tenant, name) is None
        assert journal.turns_with_item(tenant, name, 5) == []
        assert journal.chain(tenant, name) == []
        assert journal.listed(ListAsked(tenant=tenant, search=name), None, 5)[0] == []
    assert journal.usage_labels(name) == []


def test_only_what_is_not_in_memory_is_read(journal: Journal) -> None:
    first = record("r1")
    second = record("r2", parent=first)
    journal.append([first, second])
    loaded = loader(journal).load("t", "r2", lambda id_: id_ == "r1")
    assert loaded is not None
    assert [turn.row.response_id for turn in loaded.turns] == ["r2"]
    entry = link_up(loaded.turns, lambda id_: first.entry if id_ == "r1" else None)
    assert entry.parent is first.entry


def test_what_earlier_turns_sent_and_cost_is_not_read_to_go_on_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    first = record("r1")
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "deflate", lambda _: b"none that was deflated")
        journal.append([first])
    second = record("r2", parent=first)
    journal.append([second])
    loaded = loader(journal).load("t", "r2")
    assert loaded is not None
    assert_same_chain(link_up(loaded.turns, lambda _: None), second.entry)
    assert loaded.head.body.terminal == second.terminal
    with pytest.raises(JournalDamaged, match="turn r1 cannot be read"):
        loaded.turns[0].body  # noqa: B018
    journal.close()


def test_a_chain_of_any_length_is_read_in_as_many_statements(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    parent: TurnRecord | None = None
    for n in range(40):
        parent = record(f"r{n}", parent=parent, session=f"s{n % 3}")
        journal.append([parent])
    statements = list[str]()
    with journal.reading() as cursor:
        cursor.connection.set_trace_callback(statements.append)  # type: ignore[attr-defined]
    statements.clear()
    found = []
    for last in (1, 39):
        rows = journal.chain("t", f"r{last}")
        assert [row.response_id for row in rows] == [f"r{n}" for n in range(last + 1)]
        assert any(f"'r{last - 1}'" in statement for statement in statements)
        found.append(len(statements))
        statements.clear()
    assert found[0] == found[1]
    assert len(journal.chain("t", "r39", lambda base: base == "r38")) == 1
    assert not any("'r37'" in statement for statement in statements), "it is not read"
    journal.close()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (("DELETE FROM name WHERE response_id = 'r1'",), "found by one way alone"),
        (("DELETE FROM turn WHERE response_id = 'r1'",), "found by one way alone"),
        (("UPDATE name SET seq = 9 WHERE response_id = 'r1'",), "found by one way alone"),
        (("UPDATE turn SET created_ms = 9 WHERE response_id = 'r1'",), "checksum"),
        (("UPDATE turn SET base_id = 'r2' WHERE response_id = 'r1'",), "checksum"),
        (
            ("DELETE FROM turn WHERE response_id = 'r1'", "DELETE FROM name WHERE seq = 2"),
            "response r1, which others stand on, is missing",
        ),
    ],
)
def test_a_link_of_a_chain_that_is_not_whole_is_named(
    tmp_path: Path, harm: tuple[str, ...], said: str
) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    parent: TurnRecord | None = None
    for n in range(4):
        parent = record(f"r{n}", parent=parent)
        journal.append([parent])
    with journal.writing() as cursor:
        for statement in harm:
            cursor.execute(statement)
    with pytest.raises(JournalDamaged, match=said):
        journal.chain("t", "r3")
    assert [row.response_id for row in journal.chain("t", "r0")] == ["r0"]
    journal.close()


def test_a_chain_is_read_without_a_look_at_what_else_a_tenant_has(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    with journal.reading() as cursor:
        steps = [
            step
            for sql, values in ((CHAIN, ("t", "r1", "t")), (f"{NAMED} (?, ?)", ("t", "r1", "r2")))
            for *_, step in cursor.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
        ]
    reads = [step for step in steps if step.startswith(("SEARCH", "SCAN"))]
    assert {"turn", "name"} <= {step.split()[1] for step in reads}
    for step in reads:
        assert "(tenant=? AND response_id=?" in step or step == "SCAN link"
    journal.close()


def test_no_more_turns_are_read_than_asked_for(journal: Journal) -> None:
    parent: TurnRecord | None = None
    for n in range(3):
        parent = record(f"r{n}", parent=parent, created_s=float(n))
        journal.append([parent])
    journal.append([record("x", session="other", created_s=9.0)])
    journal.append([record("y", session="theirs", tenant="u", created_s=5.0)])
    for most, ids in ((2, ["r2", "r1"]), (3, ["r2", "r1", "r0"]), (4, ["r2", "r1", "r0"])):
        total, found = journal.last_turns("t", "s", most)
        assert (total, [row.response_id for row in found]) == (3, ids)
    assert journal.last_turns("t", "none", 2) == (0, [])
    assert journal.expire(0.5) == 0, "others stand on it"
    assert journal.delete_session("t", "other") == ()
    assert [each.name for each in journal.sessions()] == ["theirs", "s"]


def test_a_tenant_sees_nothing_of_another(journal: Journal) -> None:
    journal.append([record("r1", tenant="a", request_id="q")])
    assert journal.turn("b", "r1") is None
    assert journal.session("b", "s") is None
    assert journal.turn_of_request("b", "q") is None
    assert journal.chain("b", "r1") == []
    assert journal.sessions("b") == []


def test_a_turn_that_left_its_usage_only_is_charged_and_not_found(journal: Journal) -> None:
    first = record("r1")
    journal.append([first, record("r2", said=False, request_id="q", accounts=("tenant",))])
    assert journal.turn("t", "r2") is None
    session = journal.session("t", "s")
    assert session is not None
    assert session.head_id == "r1"
    assert (session.head_seq, session.account.turns) == (2, 2)
    assert session.account.cost == 2 * first.cost
    assert journal.account("t", "tenant").usage == first.usage
    assert journal.account("t", session_account("s")) == session.account
    row = journal.turn_of_request("t", "q")
    assert row is not None
    body = decode_turn(row)
    assert (body.status, body.reason, body.links, body.terminal) == (
        "failed",
        "engine_died",
        (),
        b"",
    )
    assert (body.price, body.usage, body.cost) == (PRICE, first.usage, first.cost)


def test_kv_that_is_charged_between_turns_is_a_row_and_no_turn(journal: Journal) -> None:
    kv = replace(
        record("kv_1", said=False),
        status=RESIDENCY,
        reason=None,
        usage=TurnUsage(residency=50),
        cost=7,
        saved=0,
    )
    first = record("r1")
    for each in (first, kv, record("r2", parent=first)):
        assert journal.append([each]) == [True]
    session, rows = journal.session("t", "s"), journal.session_turns("t", "s")
    assert session is not None
    assert [body.status for body in assert_books_agree(session, rows)] == [
        "completed",
        RESIDENCY,
        "completed",
    ]
    assert (session.account.turns, session.head_seq, session.head_id) == (2, 3, "r2")
    assert session.account.cost == 2 * first.cost + 7
    lost = replace(session, account=replace(session.account, turns=3))
    with pytest.raises(AssertionError):
        assert_books_agree(lost, rows)


def test_kv_of_a_session_that_was_deleted_is_charged_above_it_and_brings_nothing_back(
    journal: Journal,
) -> None:
    own = (tree_account("s"), "tenant")
    first = replace(record("r1"), accounts=own)
    usage = TurnUsage(residency=50)
    kv = replace(
        record("kv_1", said=False),
        status=RESIDENCY,
        usage=usage,
        cost=7,
        accounts=own,
        follows_turns=True,
    )
    journal.append([first])
    journal.delete_session("t", "s")
    before = journal.account("t", "tenant")
    assert journal.append([kv]) == [True]
    assert journal.session("t", "s") is None
    assert journal.session_turns("t", "s") == []
    assert journal.account("t", session_account("s")).cost == 0
    assert journal.account("t", tree_account("s")).cost == 0
    assert journal.account("t", "tenant").cost == before.cost + 7
    again = record("r2")
    assert journal.append([again]) == [True]
    session = journal.session("t", "s")
    assert session is not None
    assert session.account.cost == again.cost


def test_a_record_that_is_written_twice_is_charged_once(journal: Journal) -> None:
    turn = record("r1")
    assert journal.append([turn]) == [True]
    assert journal.append([turn]) == [True]
    session = journal.session("t", "s")
    assert session is not None
    assert session.account.turns == 1


def test_a_resent_history_is_found_by_its_digest(journal: Journal) -> None:
    first = record("r1", answer="same")
    twin = record("r2", answer="same", session="other", created_s=1001.0)
    journal.append([first, twin])
    assert first.entry is not None
    found = journal.turns_with_digest("t", first.entry.digest, 8)
    assert [row.response_id for row in found] == ["r2", "r1"]
    assert loader(journal).with_history("t", first.entry.digest, 1) == ["r2"]
    assert journal.turns_with_digest("t", b"x" * 16, 8) == []


def test_an_item_is_found_by_its_id_the_newest_first(journal: Journal) -> None:
    first = record("r1", answer="old", item_id="i")
    later = record("r2", answer="new", item_id="i", session="other", created_s=1001.0)
    journal.append([first, later, record("r3", tenant="u", item_id="i")])
    assert [row.response_id for row in journal.turns_with_item("t", "i", 8)] == ["r2", "r1"]
    (item,) = loader(journal).items("t", ["i", "none"], 10_000).values()
    assert later.entry is not None
    assert item == later.entry.output_items[0]
    journal.hide("t", "r2")
    (item,) = loader(journal).items("t", ["i"], 10_000).values()
    assert first.entry is not None
    assert item == first.entry.output_items[0]


def test_responses_and_items_that_were_deleted_are_told_from_those_that_stand(
    journal: Journal,
) -> None:
    twin = record("r2", answer="new", item_id="i", session="other", created_s=1001.0)
    turns = [record("r1", answer="old", item_id="i"), twin, record("r3", item_id="j")]
    journal.append([*turns, record("r3", tenant="u", item_id="j")])
    ids, items = ["r1", "r2", "r3", "none"], ["i", "j", "none"]
    assert journal.deleted("t", ids, items) == {"none"}
    journal.hide("t", "r2")
    assert journal.deleted("t", ids, items) == {"r2", "none"}, "another one brought it"
    journal.hide("t", "r3")
    assert journal.deleted("t", ids, ["j"]) == {"r2", "r3", "j"}
    assert journal.deleted("t", ["r1"], ["i"]) == frozenset()
    assert journal.deleted("u", ids, ["j"]) == frozenset()
    many = [f"m{n}" for n in range(999)]
    assert journal.deleted("t", [*many, "r3"], many) == {"r3", *many}


def test_an_item_of_another_tokenizer_is_unknown_unless_it_is_taken_over(journal: Journal) -> None:
    journal.append([record("r1", item_id="i")])
    assert Loader(journal, fingerprint=b"g").items("t", ["i"], 10_000) == {}
    renderer = Rig().model.renderer
    assert Loader(journal, fingerprint=b"g", retokenise=renderer).items("t", ["i"], 10_000)


def test_items_are_not_fetched_beyond_their_bound(journal: Journal) -> None:
    ids = [f"i{n}" for n in range(9)]
    turns = [record(f"r{n}", answer="x" * 1000, item_id=ids[n]) for n in range(9)]
    journal.append(turns)
    assert turns[0].entry is not None
    each = item_bytes(turns[0].entry.output_items[0])
    assert list(loader(journal).items("t", ids, 2 * each)) == ids[:3]


def test_an_items_id_may_be_any_text(journal: Journal) -> None:
    ids = ["nul \0", "\U0001f600", "x" * 512, "''; --"]
    journal.append([record(f"r{n}", item_id=id_) for n, id_ in enumerate(ids)])
    for n, id_ in enumerate(ids):
        assert [row.response_id for row in journal.turns_with_item("t", id_, 8)] == [f"r{n}"]


def test_with_its_turn_an_item_goes(journal: Journal) -> None:
    turns = [record(f"r{n}", item_id=f"i{n}", created_s=float(n)) for n in range(4)]
    journal.append([*turns, record("s1", session="other", item_id="j", created_s=90.0)])
    assert journal.expire(1.5) == 2
    assert [bool(journal.turns_with_item("t", f"i{n}", 8)) for n in range(4)] == [0, 0, 1, 1]
    journal.delete_session("t", "s")
    assert [bool(journal.turns_with_item("t", f"i{n}", 8)) for n in range(4)] == [0] * 4
    assert journal.turns_with_item("t", "j", 8)
    if isinstance(journal, SqliteJournal):
        with journal.reading() as cursor:
            assert cursor.execute("SELECT COUNT(*) FROM item").fetchone() == (1,)


def test_a_response_of_another_tokenizer_is_unknown(journal: Journal) -> None:
    first = record("r1")
    journal.append([first])
    other = Loader(journal, fingerprint=b"g")
    assert first.entry is not None
    assert other.load("t", "r1") is None
    assert other.with_history("t", first.entry.digest, 8) == []


def test_a_turn_that_left_its_usage_only_is_hidden_too_and_what_is_no_turn_is_not(
    journal: Journal,
) -> None:
    failed = record("r1", said=False, request_id="a")
    private = replace(record("r2", said=False, request_id="b"), private=True)
    charged = replace(record("r3", said=False), status=RESIDENCY)
    journal.append([failed, private, charged])
    assert journal.ended_turn("t", "r1") is not None
    assert [journal.hide("t", f"r{n}") for n in (1, 1, 2, 3)] == [True, False, False, False]
    assert journal.ended_turn("t", "r1") is None
    told = [journal.turn_of_request("t", request) for request in "ab"]
    assert [turn is not None and turn.deleted for turn in told] == [True, False]
    assert journal.ended_turn("t", "r3") is not None


def test_a_hidden_response_is_not_found_but_carries_what_stands_on_it(journal: Journal) -> None:
    first = record("r1", request_id="a")
    second = record("r2", parent=first)
    journal.append([first, second])
    begun = journal.turn_of_request("t", "a")
    assert begun is not None
    assert not begun.deleted
    assert journal.hide("t", "r1")
    assert not journal.hide("t", "r1")
    assert journal.turn("t", "r1") is None
    begun = journal.turn_of_request("t", "a")
    assert begun is not None
    assert begun.deleted
    assert first.entry is not None
    assert journal.turns_with_digest("t", first.entry.digest, 8) == []
    loaded = loader(journal).load("t", "r2")
    assert loaded is not None
    assert_same_chain(link_up(loaded.turns, lambda _: None), second.entry)


def test_deleting_a_session_ends_its_forks_and_says_which(journal: Journal) -> None:
    first = record("r1")
    fork = record("r2", parent=first, session="fork")
    other = record("r3", session="other")
    journal.append([first, fork, record("r4", parent=fork, session="fork"), other])
    assert journal.delete_session("t", "s") == ("fork",)
    assert journal.turn("t", "r1") is None
    assert journal.turn("t", "r4") is None
    assert journal.turn("t", "r3") is not None
    assert journal.session("t", "s") is None
    fork_row = journal.session("t", "fork")
    assert fork_row is not None
    assert fork_row.head_id is None
    assert fork_row.account.turns == 2


def test_a_row_stays_while_a_younger_one_stands_on_it(journal: Journal) -> None:
    old = record("r1", created_s=1.0)
    young = record("r2", parent=old, session="fork", created_s=100.0)
    journal.append([old, young, record("r3", created_s=2.0, session="gone")])
    assert journal.expire(50.0) == 1
    assert journal.session("t", "gone") is None
    assert journal.turn("t", "r3") is None
    assert len(journal.chain("t", "r2")) == 2
    assert journal.expire(200.0) == 2
    assert journal.sessions() == []


def test_many_old_rows_go_in_slices(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions.journal.retention.SLICE", 2)
    parent: TurnRecord | None = None
    for n in range(7):
        parent = record(f"r{n}", parent=parent, created_s=1.0)
        journal.append([parent, record(f"x{n}", session=f"x{n}", created_s=1.0)])
    assert journal.expire(50.0) == 14
    assert journal.sessions() == []


def part_of(response_id: str, session: str, parent: str | None, created_s: float) -> TurnRecord:
    """A turn of a session that draws on its own tree and on that of its parent, if any."""
    trees = [session] if parent is None else [session, parent]
    made = record(response_id, session=session, created_s=created_s,
                  accounts=tuple(map(tree_account, trees)))  # fmt: skip
    options: dict[str, object] = {"tree": [{"output": 100}, {}]}
    return replace(made, options=orjson.dumps(options | ({"parent": parent} if parent else {})))


def test_a_parent_keeps_account_and_budget_while_a_session_that_stays_names_it(
    journal: Journal,
) -> None:
    """Also the parent's parent; not that of a session which goes."""
    old = [("top", None), ("root", "top"), ("lost", None), ("goes", "lost")]
    journal.append([part_of(name, name, above, 1.0) for name, above in old])
    journal.append([part_of("young", "child", "root", 100.0)])
    assert journal.expire(50.0) == 4
    assert {session.name for session in journal.sessions()} == {"top", "root", "child"}
    root = journal.session("t", "root")
    assert root is not None
    assert orjson.loads(root.options)["tree"] == [{"output": 100}, {}]
    assert journal.account("t", tree_account("root")).turns == 2
    assert journal.account("t", tree_account("top")).turns == 2
    assert journal.account("t", tree_account("lost")).turns == 0
    assert journal.expire(200.0) == 1
    assert journal.sessions() == []
    assert journal.account("t", tree_account("top")).turns == 0


def test_a_parent_stays_while_the_first_turn_below_it_runs(journal: Journal) -> None:
    journal.append([part_of("r1", "root", None, 1.0)])
    trees = tuple(map(tree_account, ("child", "root")))
    journal.reserve([reservation("r2", session="child", accounts=trees)])
    assert journal.expire(50.0) == 1
    assert {session.name for session in journal.sessions()} - {"child"} == {"root"}


def sample(number: int, *, tenant: str = "", width_s: int = MINUTE_S, body: bytes = b"1") -> Sample:
    return Sample(width_s=width_s, number=number, tenant=tenant, body=body)


def test_a_sample_takes_the_place_of_the_one_before_it(journal: Journal) -> None:
    journal.keep_samples([sample(7), sample(7, tenant="t"), sample(7, width_s=HOUR_S)])
    journal.keep_samples([sample(8), sample(7, body=b"2")])
    assert journal.samples("", MINUTE_S, 0, own=True) == [sample(7, body=b"2"), sample(8)]
    assert journal.samples("", MINUTE_S, 8, own=True) == [sample(8)]
    assert journal.samples("t", MINUTE_S, 0, own=True) == [sample(7, tenant="t")]
    assert journal.samples("t", HOUR_S, 0, own=True) == []
    assert journal.samples("", HOUR_S, 0, own=True) == [sample(7, width_s=HOUR_S)]
    assert journal.samples("", MINUTE_S, 0, own=False) == []


def test_no_more_samples_are_kept_than_was_said(journal: Journal) -> None:
    for number in range(1, KEPT[MINUTE_S] + 30, 10):
        journal.keep_samples([sample(number + more) for more in range(10)])
    journal.keep_samples([sample(1, width_s=HOUR_S)])
    numbers = [each.number for each in journal.samples("", MINUTE_S, 0, own=True)]
    assert len(numbers) == KEPT[MINUTE_S]
    assert numbers[-1] == KEPT[MINUTE_S] + 30
    assert len(journal.samples("", HOUR_S, 0, own=True)) == 1


def test_a_file_can_be_looked_at_while_it_is_used(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    view = SqliteView(tmp_path / "j")
    journal.append([record("r1")])
    assert [session.name for session in view.sessions()] == ["s"]
    view.close()
    journal.close()


# Encoding


def test_a_header_comes_back_with_its_tools_and_ids() -> None:
    tools = parse_tools(
        [
            {
                "type": "function",
                "name": "look",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "b": {"type": ["string", "null"], "default": None},
                        "a": {"enum": [2**64 + 1, Decimal("0.12345678901234567890"), 0.1]},
                    },
                },
            },
            {"type": "custom", "name": "run", "format": {"type": "text"}},
        ]
    )
    (opening,) = parse_items([{"role": "system", "content": "be brief \u2028 \x00"}])
    header = Header(
        instructions=None,
        opening=opening,  # type: ignore[arg-type]
        tools=tools,
        options=TemplateOptions(thinking=True, effort="high"),
        ids=np.array([1, 2, 2**31 - 1], dtype=np.int32),
    )
    again = decode_header(encode_header(header))
    assert (again.instructions, again.opening, again.options) == (None, opening, header.options)
    assert again.tools == tools
    assert list(again.tools[0].parameters["properties"]) == ["b", "a"]
    assert again.ids.tolist() == [1, 2, 2**31 - 1]
    cache = HeaderCache()
    assert cache.encoded(header) == cache.encoded(again)


def test_a_header_keeps_the_numbers_of_its_tools_to_the_last_digit() -> None:
    values = [2**64 + 1, Decimal("0.12345678901234567890"), 123456789.12345679, 1.0]
    tools = parse_tools(
        [{"type": "function", "name": "f", "parameters": {"properties": {"a": {"enum": values}}}}]
    )
    header = Header(
        instructions="x",
        opening=None,
        tools=tools,
        options=TemplateOptions(),
        ids=np.array([1], dtype=np.int32),
    )
    body = encode_header(header)
    assert b"18446744073709551617" in body
    assert b"0.12345678901234567890" in body
    assert decode_header(body).tools == tools
    assert encode_header(decode_header(body)) == body


@pytest.mark.parametrize("cut", [0, 5, 40, -1])
def test_a_body_that_is_cut_short_is_named_as_damaged(cut: int) -> None:
    journal = MemoryJournal()
    journal.append([record("r1")])
    (row,) = journal.chain("t", "r1")
    with pytest.raises(JournalDamaged):
        decode_turn(row._replace(body=row.body[:cut]))


def test_a_body_of_another_form_is_named_as_damaged() -> None:
    journal = MemoryJournal()
    journal.append([record("r1")])
    (row,) = journal.chain("t", "r1")
    with pytest.raises(JournalDamaged):
        decode_turn(row._replace(body=_join(b"[]", b"", b"")))


def test_a_request_id_that_is_taken_refuses_its_own_turn_alone(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    journal.append([record("r0", request_id="q")])
    with pytest.raises(JournalError):
        journal.append([record("r1", session="a"), record("r2", session="b", request_id="q")])
    assert journal.turn("t", "r1") is None, "all of a commit or nothing"
    assert journal.append([record("r1", session="a")]) == [True]
    journal.close()


# Rows and the mark


@pytest.mark.parametrize("column", range(14))
def test_no_column_of_a_row_can_change_unseen(column: int) -> None:
    row = turn_columns(record("r1"), seq=1, epoch=0, fingerprint=b"f", headers=HeaderCache())
    assert read_turn(row).response_id == "r1"
    changed = list(row)
    changed[column] = b"x" if isinstance(changed[column], bytes) else "x"
    with pytest.raises(JournalDamaged, match="checksum"):
        read_turn(tuple(changed))


def test_the_newest_whole_note_of_the_mark_counts(tmp_path: Path) -> None:
    file = MarkFile(tmp_path / "m", b"i" * 16)
    for commits in (1, 2, 3, 2):
        file.write(commits)
    found = read_mark(tmp_path / "m")
    assert found is not None
    assert (found.commits, found.clean) == (3, False)
    file.write(3, clean=True)
    file.close()
    found = read_mark(tmp_path / "m")
    assert found is not None
    assert found.clean
    data = bytearray((tmp_path / "m").read_bytes())
    data[data.index((4).to_bytes(8, "little")) + 1] ^= 4  # of the newest, its number
    (tmp_path / "m").write_bytes(data)
    found = read_mark(tmp_path / "m")
    assert found is not None
    assert (found.commits, found.clean) == (3, False)
    assert read_mark(tmp_path / "none") is None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_mark_that_several_programs_write_says_no_less_than_was_told_wherever_it_is_cut(
    tmp_path: Path, seed: int
) -> None:
    """Two servers and a command beside them; some are late, and some begin anew."""
    chance = random.Random(seed)
    path, image = tmp_path / "m", tmp_path / "image"
    files = [MarkFile(path, b"i" * 16) for _ in range(3)]
    told = 0
    for commits in range(1, 41):
        before = path.read_bytes()
        who = chance.randrange(3)
        if chance.random() < 0.2:
            files[who].close()
            files[who] = MarkFile(path, b"i" * 16)
        late = chance.randrange(3)
        files[who].write(commits - late, clean=chance.random() < 0.2)
        after = path.read_bytes()
        for cut in range(len(after) + 1):
            if cut in (0, len(after)) or before[cut - 1] != after[cut - 1]:
                image.write_bytes(after[:cut] + before[cut:])
                found = read_mark(image)
                assert (0 if found is None else found.commits) >= told
        told = max(told, commits - late)
        found = read_mark(path)
        assert found is not None
        assert found.commits == told
    for file in files:
        file.close()


# Owners


def shared(path: Path, owner: str) -> SqliteJournal:
    return SqliteJournal(path, fingerprint=b"f", owner=owner, shared=True)


class Waiting:
    """A clock that something else happens on."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.now, self.then = 0.0, then

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.then()


def owner_of(journal: SqlJournal, waiting: Waiting, now_ms: list[int]) -> Ownership:
    return Ownership(journal=journal, now_ms=lambda _: now_ms[0], waiter=waiting)


def test_a_session_goes_to_who_asks_once_its_owner_lets_go(tmp_path: Path) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    now_ms = [1000]
    first = record("r1", epoch=0)
    assert a.append([first]) == [True]
    of_a = owner_of(a, Waiting(), now_ms)
    of_a.beat()

    def let_go() -> None:
        assert of_a.wanted() == [("t", "s")]
        of_a.release("t", ["s"])

    claimed = owner_of(b, Waiting(let_go), now_ms).claim("t", "s", 10.0)
    assert claimed is not None
    assert (claimed.owner, claimed.epoch, claimed.head_id) == ("b", FIRST_EPOCH + 1, "r1")
    assert a.append([record("r2", parent=first, epoch=1)]) == [False]
    assert a.turn("t", "r2") is None
    assert b.append([record("r3", parent=first, epoch=2)]) == [True]
    assert of_a.wanted() == []
    a.close()
    b.close()


def test_a_session_that_was_claimed_again_is_not_let_go(tmp_path: Path) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    first = record("r1")
    a.append([first])
    of_a = owner_of(a, Waiting(), [1000])
    of_a.beat()
    with pytest.raises(JournalBusy):
        owner_of(b, Waiting(), [1000]).claim("t", "s", 0.0)
    assert of_a.wanted() == [("t", "s")]
    assert of_a.claim("t", "s", 0.0) is not None  # a turn began here meanwhile
    of_a.release("t", ["s"])
    assert a.append([record("r2", parent=first)]) == [True]
    a.close()
    b.close()


def test_an_owner_that_lives_is_waited_for_and_a_dead_one_is_passed_over(tmp_path: Path) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    now_ms = [1000]
    a.append([record("r1")])
    owner_of(a, Waiting(), now_ms).beat()
    of_b = owner_of(b, Waiting(), now_ms)
    with pytest.raises(JournalBusy, match="held by another server"):
        of_b.claim("t", "s", 10.0)
    now_ms[0] += DEAD_MS
    with pytest.raises(JournalBusy):
        of_b.claim("t", "s", 1.0)
    now_ms[0] += 1
    claimed = of_b.claim("t", "s", 1.0)
    assert claimed is not None
    assert claimed.epoch == 2
    assert of_b.claim("t", "unknown", 1.0) is None
    a.close()
    b.close()


HOUR_MS = 3_600_000


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_clock_that_is_set_costs_an_owner_that_lives_one_claim_at_most(
    tmp_path: Path, jump_ms: int
) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    now_ms = [10 * HOUR_MS]
    first, other = record("r1"), record("x1", session="other")
    assert a.append([first, other]) == [True, True]
    of_a, of_b = (owner_of(each, Waiting(), now_ms) for each in (a, b))
    of_a.beat()
    now_ms[0] += jump_ms
    taken = of_b.claim("t", "s", 0.0)  # wrongly, before the next heartbeat
    assert taken is not None
    assert a.append([record("r2", parent=first)]) == [False], "its epoch is an old one"
    assert b.append([record("r3", parent=first, epoch=taken.epoch)]) == [True]
    of_a.beat()
    with pytest.raises(JournalBusy):
        of_b.claim("t", "other", 0.0)
    assert a.append([record("x2", parent=other, session="other")]) == [True]
    a.close()
    b.close()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_clock_that_is_set_keeps_no_dead_owner_alive(tmp_path: Path, jump_ms: int) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    now_ms = [10 * HOUR_MS]
    a.append([record("r1")])
    owner_of(a, Waiting(), now_ms).beat()
    now_ms[0] += jump_ms
    assert owner_of(b, Waiting(), now_ms).claim("t", "s", 0.0) is not None
    a.close()
    b.close()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_server_does_not_take_itself_for_dead_when_the_clock_is_set(
    tmp_path: Path, jump_ms: int
) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    now_ms = [10 * HOUR_MS]
    of_a, of_b = (owner_of(each, Waiting(), now_ms) for each in (a, b))
    of_a.beat()
    of_b.beat()
    assert a.append([record("r1")]) == [True]
    a.reserve([reservation("r2", epoch=1)])
    want = [Want(name="tree/x", budget=Budget(output=9), amount=Amount(output=4))]
    of_b.claim_shares("t", want)
    now_ms[0] += jump_ms
    (given,) = of_a.claim_shares("t", want)  # b's goes back: it has not beaten since
    assert given.amount.output == 4
    assert of_a.settle_left() == []
    assert [held.response_id for held in a.reservations("t", "s")] == ["r2"]
    assert of_a.claim_request("t", "id")
    assert a.append([record("r3", parent=record("r1"))]) == [True]
    a.close()
    b.close()


def test_keeping_the_books_of_a_session_is_no_activity_of_it(journal: Journal) -> None:
    def kv(name: str, session: str, created_s: float) -> TurnRecord:
        usage = TurnUsage(residency=50)
        charged = replace(
            record(name, said=False, session=session, created_s=created_s), usage=usage
        )
        return replace(charged, status=RESIDENCY, reason=None)

    for number, name in enumerate(("first", "second", "third")):
        journal.append([record(f"r{number}", session=name, created_s=100.0 + number)])
    journal.append([kv("kv_1", "first", 900.0), kv("kv_0", "second", 800.0)])
    journal.append([record("late", session="second", said=False, created_s=500.0)])
    journal.append([kv("kv_2", "unknown", 50.0), kv("kv_3", "unknown", 60.0)])
    found = {each.name: each.updated_s for each in journal.sessions("t")}
    assert found == {"second": 500.0, "third": 102.0, "first": 100.0, "unknown": 50.0}
    assert list(found) == ["second", "third", "first", "unknown"]
