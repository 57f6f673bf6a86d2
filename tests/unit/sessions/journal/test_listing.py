"""Pages of a journal's sessions against a journal that looks at every session."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from sessions.durable.ledger import TurnUsage
from sessions.journal import listing
from sessions.journal.journal import Journal
from sessions.journal.listing import ListAsked, ListedSession, ListPlace, Order, missing_part
from sessions.journal.records import TurnRecord, options_kept, tree_account
from sessions.journal.sqlite import SqliteJournal
from tests.support.journals import record
from tests.support.memory_journal import MemoryJournal

NAMES = ["Alpha", "alpha-2", "ÄRGER", "日本語", "a<b>#&=%", "x" * 256, "0", "%_'"]
FILTERS: list[dict[str, Any]] = [
    {},
    {"tenant": "t"},
    {"failed": True},
    {"bounded": True},
    {"several": True},
    {"search": "alpha"},
    {"search": "ärger"},
    {"search": "%"},
    {"search": "team:r"},
    {"search": "nothing at all"},
    {"labels": (("team", "red"),)},
    {"labels": (("team", "red"), ("user", "Ü"))},
    {"labels": (("team", "no"),)},
    {"from_ms": 300_000, "to_ms": 800_000},
    {"to_ms": 500_000, "tenant": "u", "failed": True},
    {"bounded": True, "labels": (("user", "Ü"),), "search": "a"},
]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    opened = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    yield opened
    opened.close()


def drawn(rng: random.Random, number: int, names: list[tuple[str, str]]) -> TurnRecord:
    """A turn of a session that is there or not; some say what the session is."""
    if not names or rng.random() < 0.4:
        names.append((rng.choice("tu"), f"{rng.choice(NAMES)[:240]}{rng.randrange(30)}"))
    tenant, name = rng.choice(names)
    told: dict[str, Any] = {}
    if rng.random() < 0.3:
        told["session"] = [{"cost": rng.randrange(9)}, {}]
    if rng.random() < 0.5:
        told["labels"] = {
            k: rng.choice(("red", "Ü")) for k in ("team", "user") if rng.random() < 0.6
        }
    said = rng.random() < 0.7
    made = record(f"r{number}", tenant=tenant, session=name, said=said)
    usage = TurnUsage(input_tokens=rng.randrange(2, 99), cached_tokens=rng.randrange(3))
    return replace(
        made,
        number=number,
        usage=usage if rng.random() < 0.9 else TurnUsage(),
        cost=rng.randrange(6),
        computed_again=rng.randrange(4),
        created_s=float(rng.randrange(1000)),
        options=orjson.dumps(told) if told else b"",
        accounts=(tree_account(name),),
    )


def bare(found: list[ListedSession]) -> list[ListedSession]:
    """Without whose they are, which only stores that are shared say."""
    return [each._replace(record=replace(each.record, owner="", epoch=0)) for each in found]


def pages(journal: Journal, asked: ListAsked, most: int) -> list[ListedSession]:
    found, after = list[ListedSession](), None
    while True:
        some, _ = journal.listed(asked, after, most)
        found += bare(some)
        if len(some) < most:
            return found
        after = some[-1].place


@pytest.mark.samples(2)
@pytest.mark.parametrize("few", [0, 5, 2000])
@pytest.mark.parametrize("seed", range(3))
def test_every_filter_and_order_is_that_of_a_look_at_every_session(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch, seed: int, few: int
) -> None:
    monkeypatch.setattr(listing, "FEW", few)
    rng, memory = random.Random(seed), MemoryJournal(b"f")
    names: list[tuple[str, str]] = []
    records = [drawn(rng, number, names) for number in range(90)]
    for first in range(0, 90, 9):
        assert all(journal.append(records[first : first + 9]))
        memory.append(records[first : first + 9])
    for order in get_args(Order):
        for fields in FILTERS:
            asked = ListAsked(order=order, **fields)
            wanted = pages(memory, asked, 1000)
            assert pages(journal, asked, 7) == wanted, asked
            _, matching = journal.listed(asked, None, 1)
            assert matching in (None, len(wanted))
            assert matching is not None or few < 2000
            some = rng.sample(names, 9)
            assert bare(journal.listed_among(asked, some)) == memory.listed_among(asked, some)


def family(journal: Journal) -> None:
    """Three levels, the oldest parent named first."""
    parents = {"lead": None, "a": "lead", "b": "lead", "aa": "a", "ab": "a", "lone": None}
    for number, (name, parent) in enumerate(parents.items()):
        told = {} if parent is None else {"parent": parent}
        if name == "lead":
            told = {"tree": [{"cost": 5}, {}]}  # type: ignore[dict-item]
        line, accounts = name, [tree_account(name)]
        while (above := parents[line]) is not None:
            accounts.append(tree_account(above))
            line = above
        turn = record(f"r{number}", session=name, accounts=tuple(accounts))
        options = orjson.dumps(told) if told else b""
        journal.append([replace(turn, cost=10**number, created_s=number, options=options)])


def test_a_tree_has_each_session_behind_its_parent_and_its_sum(journal: SqliteJournal) -> None:
    family(journal)
    found = journal.session_tree("t", "lead", 99)
    assert [(depth, each.record.name) for depth, each in found] == [
        (0, "lead"),
        (1, "b"),
        (1, "a"),
        (2, "ab"),
        (2, "aa"),
    ]
    assert found[0][1].tree.cost == sum(each.record.account.cost for _, each in found) == 11_111
    assert [name for _, name in found[2:] if name.tree.cost != name.record.account.cost] == [
        found[2][1]
    ]
    assert len(journal.session_tree("t", "lead", 2)) == 2
    assert journal.session_tree("t", "nobody", 9) == journal.session_tree("u", "lead", 9) == []
    memory = MemoryJournal(b"f")
    family(memory)
    told = memory.session_tree("t", "lead", 99)
    assert [depth for depth, _ in told] == [depth for depth, _ in found]
    assert [each for _, each in told] == bare([each for _, each in found])


def test_below_a_bounded_tree_sessions_are_bounded(journal: SqliteJournal) -> None:
    family(journal)
    bounded, _ = journal.listed(ListAsked(bounded=True), None, 99)
    assert {each.record.name for each in bounded} == {"lead", "a", "b", "aa", "ab"}


def test_names_that_go_round_in_a_tree_end(journal: SqliteJournal) -> None:
    for name, parent in (("a", "b"), ("b", "a")):
        options = orjson.dumps({"parent": parent})
        journal.append([replace(record(name, session=name), options=options)])
    assert len(journal.session_tree("t", "a", 7)) == 7


def test_a_session_that_is_deleted_is_found_by_nothing(journal: SqliteJournal) -> None:
    options = orjson.dumps({"labels": {"team": "red"}})
    journal.append([replace(record("r"), options=options)])
    asked = [ListAsked(), ListAsked(search="team:red"), ListAsked(labels=(("team", "red"),))]
    assert [len(journal.listed(each, None, 9)[0]) for each in asked] == [1, 1, 1]
    journal.delete_session("t", "s")
    assert [journal.listed(each, None, 9) for each in asked] == [([], 0)] * 3
    with journal.reading() as cursor:
        for table in ("session_label", "session_text"):
            assert cursor.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_labels_that_are_given_anew_take_the_place_of_the_old_ones(journal: SqliteJournal) -> None:
    for number, labels in enumerate(({"a": "1", "b": "2"}, {"b": "3"}, {})):
        options = orjson.dumps({"labels": labels, "outlives_sockets": True})
        journal.append([replace(record(f"r{number}"), options=options)])
        found = {
            (name, value)
            for name in "ab"
            for value in "123"
            if journal.listed(ListAsked(labels=((name, value),)), None, 9)[0]
        }
        assert found == set(labels.items())
        (listed,), _ = journal.listed(ListAsked(), None, 9)
        assert dict(options_kept(listed.record.options).labels) == labels


@pytest.mark.parametrize(("cached", "asked", "key"), [(0, 0, 0), (5, 5, 1), (0, 5, 1_000_001)])
def test_the_worst_hit_ratio_comes_first_and_none_last(cached: int, asked: int, key: int) -> None:
    assert missing_part(cached, asked) == key


def test_places_are_sorted_largest_first_then_by_name() -> None:
    places = [ListPlace(1, "t", "a"), ListPlace(2, "t", "b"), ListPlace(2, "t", "a")]
    places.sort(key=lambda place: place.sorted_by)
    assert places == [ListPlace(2, "t", "a"), ListPlace(2, "t", "b"), ListPlace(1, "t", "a")]
