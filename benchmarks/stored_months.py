"""A journal of thirteen months: how long it takes to write, and what its lists and sums cost.

Part ``journal`` of ``benchmarks.dashboard``. Sessions begin evenly over the months and have five
turns each in the mean; some are parts of earlier ones, have budgets of their own or turns that
failed. Every query of the sessions' list (each filter in each order, first and second page, one
tenant's and the operator's) and every one of a month of ``/v1/usage`` (each bucket and group) is
asked as the pages ask it, without a server.
"""

import gc
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.report import Bar
from sessions.durable.usage_keys import UsageKeys, sorted_labels
from sessions.journal.journal import Journal
from sessions.journal.listing import ListAsked, ListPlace, Order
from sessions.journal.postgres import PostgresJournal
from sessions.journal.records import TENANT_ACCOUNT, TurnRecord, tree_account
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.usage_reading import Bucket, Group, UsageAsked, month_starts
from sessions.pages.list_query import PAGE_ROWS
from sessions.pages.sessions_listing import journal_row
from sessions.pages.usage_query import UsageQuery
from sessions.pages.usage_report import usage_page
from tests.support.journals import record
from tests.support.postgres import PROGRAMS, postgres

SESSIONS = 100_000
TENTH = 10
"""The smaller journal has one session in so many, over the same months."""
TURNS_OF_SESSIONS = (1, 3, 5, 7, 9)
FIRST_S = 1_761_955_200
"""2025-11-01 00:00 UTC."""
MONTHS_S = 395 * 86_400
PAUSE_S = 300
TENANTS, KEYS, VALUES, TOOLS = 20, 50, 100, 40
COMMIT = 500
"""Turns of a transaction."""
ROUNDS = 20
USAGE_ROWS = 1000
MONTH = 7
"""The month that is asked about."""
ORDERS: tuple[Order, ...] = ("recent", "cost", "again", "hit")
BUCKETS: tuple[Bucket, ...] = ("1h", "1d", "1mo")
GROUPS: tuple[Group, ...] = ("", "tenant", "key", "model", "tool", "label")
MS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """A session that is to be written."""

    number: int
    tenant: int
    begins_s: float
    turns: int

    @property
    def name(self) -> str:
        return _name(self.number)


def drawn_sessions(count: int, seed: int) -> list[_Drawn]:
    """In the order of their beginning; five turns each in the mean, whatever the seed."""
    chance = random.Random(seed)
    turns = [TURNS_OF_SESSIONS[number % len(TURNS_OF_SESSIONS)] for number in range(count)]
    chance.shuffle(turns)
    begins = sorted(FIRST_S + MONTHS_S * chance.random() for _ in range(count))
    return [
        _Drawn(number=number, tenant=chance.randrange(TENANTS), begins_s=at, turns=many)
        for number, (at, many) in enumerate(zip(begins, turns, strict=True))
    ]


def drawn_turns(count: int, seed: int) -> Iterator[TurnRecord]:
    """Every turn of so many sessions, in the order of time."""
    sessions = drawn_sessions(count, seed)
    when = np.array([each.begins_s + PAUSE_S * n for each in sessions for n in range(each.turns)])
    whose = np.repeat(np.arange(count), [each.turns for each in sessions])
    chance = random.Random(seed + 1)
    heads: dict[int, TurnRecord] = {}
    number_of: dict[int, int] = {}
    before = [-1] * TENANTS
    for place in np.argsort(when, kind="stable"):
        session = int(whose[place])
        drawn = sessions[session]
        number = number_of.pop(session, 0) + 1
        made = _turn(drawn, number, heads.pop(session, None), float(when[place]), chance)
        if number == 1:
            made = replace(made, options=_options(session, before[drawn.tenant], chance))
            before[drawn.tenant] = session
        if number < drawn.turns:
            number_of[session] = number
            heads[session] = made
        yield made


def _name(session: int) -> str:
    return f"session-{session:06d}"


def _turn(
    drawn: _Drawn,
    number: int,
    parent: TurnRecord | None,
    at_s: float,
    chance: random.Random,
) -> TurnRecord:
    made = record(
        f"r{drawn.number}_{number}",
        parent=parent if parent is not None and parent.links else None,
        session=drawn.name,
        tenant=f"tenant-{drawn.tenant}",
        said=chance.random() >= 0.02,
        created_s=at_s,
        accounts=(tree_account(drawn.name), TENANT_ACCOUNT),
    )
    asked = chance.randrange(100, 4000)
    usage = replace(
        made.usage,
        input_tokens=asked,
        cached_tokens=chance.randrange(asked),
        output_tokens=chance.randrange(1, 400),
    )
    tools = chance.choices(range(TOOLS), k=chance.choice((0, 1, 1, 2)))
    keys = UsageKeys(
        key=f"key-{drawn.tenant + TENANTS * chance.randrange(-(-KEYS // TENANTS))}",
        model=f"model-{chance.randrange(2)}",
        labels=_labels(drawn.number),
        tools=tuple(f"tool_{tool}" for tool in tools),
    )
    return replace(
        made,
        number=number,
        usage=usage,
        cost=made.price.cost(usage),
        saved=made.price.saved(usage),
        computed_again=chance.randrange(200) if chance.random() < 0.1 else 0,
        keys=keys,
    )


def _labels(session: int) -> tuple[tuple[str, str], ...]:
    return sorted_labels({"project": f"project-{session % VALUES}"})


def _options(session: int, earlier: int, chance: random.Random) -> bytes:
    told: dict[str, Any] = {"labels": dict(_labels(session))}
    if chance.random() < 0.1:
        told["session"] = [{"output": 100_000}, {}]
    if earlier >= 0 and chance.random() < 0.2:
        told["parent"] = _name(earlier)
    return orjson.dumps(told)


# Asking

Question = Callable[[Journal], list[float]]
"""Asks, and says in how many milliseconds each page came."""


def list_questions() -> dict[str, Question]:
    """Every query of the sessions' list, by name."""
    months = month_starts(FIRST_S // 3600, (FIRST_S + MONTHS_S) // 3600)
    from_ms, to_ms = (hour * 3_600_000 for hour in months[MONTH : MONTH + 2])
    filters = {
        "all": ListAsked(),
        "search": ListAsked(search="77"),
        "search for nothing": ListAsked(search="nowhere"),
        "label": ListAsked(labels=(("project", "project-7"),)),
        "failed": ListAsked(failed=True),
        "bounded": ListAsked(bounded=True),
        "several": ListAsked(several=True),
        "month": ListAsked(from_ms=from_ms, to_ms=to_ms),
        "failed, bounded": ListAsked(failed=True, bounded=True),
        "search, several": ListAsked(search="77", several=True),
    }
    found = dict[str, Question]()
    for (name, asked), order, tenant in product(filters.items(), ORDERS, (None, "tenant-3")):
        whole = replace(asked, order=order, tenant=tenant)
        found[f"{name}, {order}, {tenant or 'operator'}"] = partial(_pages, asked=whole)
    return found


def _pages(journal: Journal, asked: ListAsked) -> list[float]:
    """Milliseconds of the first page and of the second one."""
    taken, after = list[float](), None
    for _ in range(2):
        began = time.perf_counter()
        found, _ = journal.listed(asked, after, PAGE_ROWS + 1)
        for each in found[:PAGE_ROWS]:
            journal_row(journal, each)
        taken.append(MS * (time.perf_counter() - began))
        if len(found) <= PAGE_ROWS:
            break
        after = ListPlace(*found[PAGE_ROWS - 1].place)
    return taken


def usage_questions() -> dict[str, Question]:
    """Every query of a month's usage, by name."""
    months = month_starts(FIRST_S // 3600, (FIRST_S + MONTHS_S) // 3600)
    first, end = months[MONTH : MONTH + 2]
    found = dict[str, Question]()
    for bucket, group, tenant in product(BUCKETS, GROUPS, (None, "tenant-3")):
        asked = UsageAsked(
            first_hour=first,
            end_hour=end,
            bucket=bucket,
            group=group,
            label="project" if group == "label" else "",
            tenant=tenant,
        )
        query = UsageQuery(asked=asked, format="json", rows=USAGE_ROWS, cursor="")
        name = f"{bucket}, by {group or 'nothing'}, {tenant or 'operator'}"
        found[name] = partial(_month, query=query)
    return found


def _month(journal: Journal, query: UsageQuery) -> list[float]:
    began = time.perf_counter()
    usage_page(journal, query)
    return [MS * (time.perf_counter() - began)]


def p95(values: Sequence[float]) -> float:
    """The value that 95 % do not pass."""
    return float(np.percentile(values, 95))


def asked_ms(journal: Journal, questions: dict[str, Question], rounds: int) -> dict[str, float]:
    """The p95 of each question, pages together, in milliseconds; asked in turns, not each at once,
    so that a slow moment of the machine is no question's own."""
    taken: dict[str, list[float]] = {name: [] for name in questions}
    for _ in range(rounds):
        for name, ask in questions.items():
            taken[name] += ask(journal)
    return {name: p95(values) for name, values in taken.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Months:
    """One journal's figures."""

    write_s: float
    list_ms: dict[str, float]
    usage_ms: dict[str, float]


def measure(journal: Journal, sessions: int, seed: int, rounds: int) -> Months:
    """Write the months into an empty journal, then ask."""
    turns = drawn_turns(sessions, seed)
    write_s = 0.0
    while commit := list(islice(turns, COMMIT)):
        began = time.perf_counter()
        written = journal.append(commit)
        write_s += time.perf_counter() - began
        assert all(written)
    gc.collect()
    return Months(
        write_s=write_s,
        list_ms=asked_ms(journal, list_questions(), rounds),
        usage_ms=asked_ms(journal, usage_questions(), rounds),
    )


@contextmanager
def _sqlite() -> Iterator[Journal]:
    with tempfile.TemporaryDirectory(prefix="keepwarm-months-") as folder:
        journal = SqliteJournal(Path(folder) / "journal", fingerprint=b"f")
        yield journal
        journal.close()


@contextmanager
def _postgres() -> Iterator[Journal]:
    with postgres() as address:
        journal = PostgresJournal(address, fingerprint=b"f", owner="")
        yield journal
        journal.close()


Store = Callable[[], AbstractContextManager[Journal]]


def stores() -> dict[str, Store]:
    """How each store that is here makes an empty journal, by its name."""
    found: dict[str, Store] = {"sqlite": _sqlite}
    return found | {"postgres": _postgres} if PROGRAMS is not None else found


def figures(sessions: int, seed: int, rounds: int) -> tuple[dict[str, Any], list[Bar]]:
    """Figures and bars of every store, with so many sessions and with a tenth of them."""
    told: dict[str, Any] = {"sessions": sessions, "seed": seed}
    bars = list[Bar]()
    for name, made in stores().items():
        with made() as journal:
            few = measure(journal, sessions // TENTH, seed, rounds)
        with made() as journal:
            many = measure(journal, sessions, seed, rounds)
        list_ms, usage_ms = max(many.list_ms.values()), max(many.usage_ms.values())
        told[name] = {
            "write_s": many.write_s,
            "dearest_lists_ms": _dearest(many.list_ms),
            "dearest_months_ms": _dearest(many.usage_ms),
            "dearest_lists_ms_of_a_tenth": _dearest(few.list_ms),
            "dearest_months_ms_of_a_tenth": _dearest(few.usage_ms),
        }
        bars += [
            Bar(name=f"{name}_write_s", value=many.write_s, op="<=", bar=600.0),
            Bar(name=f"{name}_list_p95_ms", value=list_ms, op="<=", bar=150.0),
            Bar(name=f"{name}_usage_p95_ms", value=usage_ms, op="<=", bar=300.0),
            _growth(f"{name}_list_growth", few.list_ms, many.list_ms),
            _growth(f"{name}_usage_growth", few.usage_ms, many.usage_ms),
        ]
    return told, bars


def _dearest(ms: dict[str, float], most: int = 5) -> dict[str, float]:
    return dict(sorted(ms.items(), key=lambda each: -each[1])[:most])


def _growth(name: str, few: dict[str, float], many: dict[str, float]) -> Bar:
    """By how much the dearest query is dearer in the larger journal. A search for a part of a text
    looks through all texts, and has its own bar alone."""
    before, after = (
        max(value for query, value in ms.items() if not query.startswith("search"))
        for ms in (few, many)
    )
    return Bar(name=name, value=after / before, op="<=", bar=2.0)
