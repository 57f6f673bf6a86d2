"""What ``keepwarm top`` makes of a server's words: typed rows, curves, and a table in order."""

import math
from typing import Any

import orjson
import pytest

from keepwarm.top.command import top
from keepwarm.top.curves import POINTS, Curves, drawn
from keepwarm.top.feed import (
    BudgetRow,
    Feed,
    FeedError,
    SessionRow,
    Snapshot,
    first_token_buckets,
    printable,
    read_sessions,
)
from keepwarm.top.table import (
    COLUMNS,
    View,
    amount,
    columns,
    described,
    duration,
    left,
    money,
    percent,
)
from sessions.durable.account import KINDS


def row(session: str = "s", **fields: Any) -> SessionRow:
    plain = {
        "tenant": "acme", "state": "idle", "turns": 1, "input_tokens": 100, "cached_tokens": 50,
        "output_tokens": 10, "cost": 0.0, "saved": 0.0, "budget_left": (), "idle_s": 1.0,
    }  # fmt: skip
    return SessionRow(session=session, **plain | fields)


def totals(**counts: float) -> Snapshot:
    return Snapshot(totals=counts)


# What the server says


def test_a_session_is_read_with_its_types() -> None:
    raw = {"session": "s", "tenant": "t", "state": "waiting_for_tools", "turns": 3,
           "input_tokens": 10, "cached_tokens": 5, "output_tokens": 7, "cost": 0.5, "saved": 0.25,
           "budget_left": {"output": 9, "cost": 0.1}, "idle_s": 2.5}  # fmt: skip
    body = {"server": {"operator": True}, "engine": {"running": 1}, "totals": {"turns": 3},
            "num_sessions": 40, "sessions": [raw]}  # fmt: skip
    found = read_sessions(orjson.dumps(body))
    assert found.rows == (
        row("s", tenant="t", state="tools", turns=3, input_tokens=10, cached_tokens=5,
            output_tokens=7, cost=0.5, saved=0.25, budget_left=(("output", 9), ("cost", 0.1)),
            idle_s=2.5),
    )  # fmt: skip
    assert (found.num_sessions, found.total("turns"), found.engine) == (40, 3, {"running": 1})


@pytest.mark.parametrize("raw", [{}, None, 3, {"turns": "many", "cost": None, "idle_s": True}])
def test_what_is_missing_or_of_another_type_is_nothing(raw: Any) -> None:
    (found,) = read_sessions(orjson.dumps({"sessions": [raw]})).rows
    assert (found.turns, found.cost, found.idle_s, found.hit_ratio) == (0, 0, 0, None)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"sessions": 3}', b"\xff"])
def test_another_server_is_told_from_ours(body: bytes) -> None:
    with pytest.raises(FeedError, match="is this a keepwarm server"):
        read_sessions(body)


def test_names_cannot_give_a_terminal_orders() -> None:
    named = {"session": "\x1b]0;owned\x07\u202e\n", "tenant": "\x9b2J"}
    (found,) = read_sessions(orjson.dumps({"sessions": [named]})).rows
    assert (found.session + found.tenant).isprintable()
    assert printable("Sessão 日本") == "Sessão 日本"


def test_times_to_the_first_token_are_read_from_the_metrics() -> None:
    name = "keepwarm_turn_time_to_first_token_seconds"
    text = (
        f'# TYPE {name} histogram\n{name}_bucket{{le="0.1"}} 3.0\n{name}_bucket{{le="+Inf"}} 4.0\n'
    )
    assert first_token_buckets(text + f"{name}_count 4.0\n") == ((0.1, 3.0), (math.inf, 4.0))
    assert first_token_buckets("") == ()


@pytest.mark.parametrize("url", ["", "server:8080", "ws://server", "http://", "file:///etc/passwd"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        Feed(url, None)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1?a=b"])
def test_the_url_of_the_api_means_its_server(url: str) -> None:
    assert Feed(url, None).address == "http://h:1"


# Curves


def test_counts_become_rates() -> None:
    curves = Curves()
    curves.add(totals(streamed_tokens=100, input_tokens=0), 10.0)
    assert curves.points("out/s") == ()
    curves.add(totals(streamed_tokens=150, input_tokens=40), 12.0)
    assert (curves.points("out/s"), curves.points("in/s")) == ((25.0,), (20.0,))


def test_a_server_that_begins_anew_counts_from_nothing() -> None:
    curves = Curves()
    curves.add(totals(streamed_tokens=1000), 0.0)
    curves.add(totals(streamed_tokens=10), 1.0)
    assert curves.points("out/s") == (10.0,)


def test_the_past_is_bounded() -> None:
    curves = Curves()
    for second in range(2 * POINTS):
        curves.add(totals(streamed_tokens=second), float(second))
    assert len(curves.points("out/s")) == POINTS


def test_only_operators_have_curves_of_the_engine() -> None:
    curves = Curves()
    curves.add(totals(), 0.0)
    assert curves.points("running") == curves.points("KV %") == ()
    curves.add(Snapshot(engine={"running": 3, "kv_usage": 0.25}), 1.0)
    assert (curves.points("running"), curves.points("KV %")) == ((3,), (25.0,))


def test_the_time_to_the_first_token_is_that_of_turns_since_it_looked() -> None:
    curves = Curves()
    slow = ((0.1, 0.0), (1.0, 100.0), (math.inf, 100.0))
    curves.add(Snapshot(first_tokens=slow), 0.0)
    assert curves.first_token_s(0.95) is None
    curves.add(Snapshot(first_tokens=((0.1, 96.0), (1.0, 200.0), (math.inf, 200.0))), 1.0)
    assert curves.first_token_s(0.95) == 0.1
    assert curves.first_token_s(0.99) == 1.0
    curves.add(Snapshot(first_tokens=((0.1, 0.0), (1.0, 1.0), (math.inf, 1.0))), 2.0)
    assert curves.first_token_s(0.95) is None, "another life of the server"


def test_a_curve_is_drawn_from_zero_to_its_largest_point() -> None:
    assert drawn((0, 1, 4, 8), 10) == "_▁▄█"
    assert drawn((0, 0), 10) == "__"
    assert drawn((8, 1, 2), 2) == "▄█"
    assert drawn((), 10) == drawn((1, 2), 0) == ""
    assert drawn((-1, 3), 2) == "_█"


# The table


def test_numbers_have_room() -> None:
    numbers = [0, 7, 9999, 10_000, 99_949, 123_456, 999_999, 1e6, 123e6, 5.5e9, 9e11]
    assert all(len(amount(number)) <= 5 for number in numbers)
    assert [amount(n) for n in (9999, 12_345, 1e6)] == ["9999", "12.3k", "1.0M"]
    sums = [0, 0.00001, 0.0042, 0.99999, 1.5, 99_999.99]
    assert all(len(money(dollars)) <= 9 for dollars in sums)
    assert [money(dollars) for dollars in sums[:4]] == ["-", "<$0.0001", "$0.0042", "$1.0000"]
    assert [duration(s) for s in (5, 90, 7200, 1e6)] == ["5s", "2m", "2h", "12d"]
    assert [percent(ratio) for ratio in (None, 0.0, 0.836)] == ["-", "0%", "84%"]


def names(view: View, rows: list[SessionRow]) -> str:
    return "".join(each.session for each in view.shown(rows))


def test_rows_stand_by_the_column_and_numbers_begin_with_the_largest() -> None:
    rows = [row("b", cost=1.0), row("a", cost=3.0), row("c", cost=2.0)]
    assert names(View().sort("cost"), rows) == "acb"
    assert names(View().sort("cost").sort("cost"), rows) == "bca"
    assert names(View().sort("session"), rows) == "abc"
    assert names(View(), rows) == "bac", "as the server has them"


def test_a_budget_that_ends_soon_stands_before_one_that_does_not() -> None:
    rows = [
        row("a"),
        row("b", budget_left=(("cost", 5.0),)),
        row("c", budget_left=(("cost", 0.0), ("output", 3))),
    ]
    assert names(View().sort("left"), rows) == "cba"
    assert described(rows[2]) == "c (acme)  left: - cost, 3 output"


def test_rows_are_filtered_by_words_and_state() -> None:
    rows = [row("Plan"), row("plan-2", state="tools"), row("code", tenant="planck")]
    assert names(View(words="PLAN"), rows) == "Planplan-2code"
    assert names(View(words="plan 2"), rows) == "plan-2"
    view = View().next_state(rows)
    assert (view.state, names(view, rows)) == ("idle", "Plancode")
    view = view.next_state(rows)
    assert (view.state, names(view, rows)) == ("tools", "plan-2")
    assert view.next_state(rows).state is None


@pytest.mark.parametrize("width", [40, 60, 80, 92, 120, 200])
@pytest.mark.parametrize("operator", [True, False])
def test_the_columns_fit_the_width(width: int, operator: bool) -> None:
    chosen = columns(operator=operator, width=width)
    titles = [column.title for column in chosen]
    if width >= 60:
        assert sum(column.width + 1 for column in chosen) <= width
    assert titles[0] == "session"
    assert {"state", "hit", "cost"} <= set(titles)
    assert ("tenant" in titles) == (operator and width >= 80)


# The command


def test_the_server_and_the_key_come_from_the_options_or_the_environment() -> None:
    told = {"KEEPWARM_URL": "http://a:1", "KEEPWARM_API_KEY": "k"}
    assert top([], told).feed.headers["Authorization"] == "Bearer k"
    assert top([], told).feed.address == "http://a:1"
    assert top(["--url", "http://b:2"], told).feed.address == "http://b:2"
    assert "Authorization" not in top([], {}).feed.headers
    named = {top([], told).feed.headers["X-Session-Id"] for _ in range(2)}
    assert len(named) == 2, "a balancer sends each program's looks to a server of its own"


@pytest.mark.parametrize("words", [["--every", "0"], ["--every", "x"], ["--url", "b:2"], ["more"]])
def test_options_that_make_no_sense_end_with_status_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        top(words, {})
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("keepwarm top: error: ")
    assert line.endswith("See 'keepwarm top --help'.")


@pytest.mark.parametrize("key", ["secret\n", "s\N{EURO SIGN}cret"])
def test_what_can_be_no_key_is_told_by_where_it_stands(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, told, place in (
        (["--api-key", key], {}, "--api-key"),
        ([], {"KEEPWARM_API_KEY": key}, "KEEPWARM_API_KEY"),
    ):
        with pytest.raises(SystemExit) as ended:
            top(words, told)
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"keepwarm top: error: {place} has characters that no key has")
        assert "cret" not in line


# Budgets


def budgeted(**fields: Any) -> SessionRow:
    budgets = (
        BudgetRow(scope="session", owner="coder", left=(("output", 400.0),)),
        BudgetRow(scope="tree", owner="coder", left=(("output", 60.0),)),
        BudgetRow(scope="tree", owner="lead", left=(("output", 90.0), ("cost", 0.5))),
        BudgetRow(scope="tenant", owner="acme", left=(("cost", 0.25),)),
    )
    return row("coder", budgets=budgets, **fields)


def test_budgets_of_every_scope_are_read() -> None:
    told = [{"scope": "tree", "owner": "le\x1bad", "left": {"output": 9}, "limit": {"output": 10}}]
    raw = {"session": "s", "budget_left": {"output": 9}, "budgets": told}
    (found,) = read_sessions(orjson.dumps({"sessions": [raw]})).rows
    assert found.budgets == (BudgetRow(scope="tree", owner="le�ad", left=(("output", 9),)),)
    for wrong in (None, 3, [3], [{"left": [1]}]):
        (found,) = read_sessions(orjson.dumps({"sessions": [raw | {"budgets": wrong}]})).rows
        assert found.least_left == {"output": 9}


def test_what_is_left_is_the_least_of_all_budgets_and_each_is_described() -> None:
    assert budgeted().least_left == {"output": 60, "cost": 0.25}
    assert left(budgeted()) == "$0.2500"
    assert described(budgeted()) == (
        "coder (acme)  left: session 400 output; tree 60 output; "
        "tree of lead 90 output, $0.5000 cost; tenant $0.2500 cost"
    )
    rows = [row("a", budget_left=(("cost", 0.3),)), budgeted(), row("z")]
    assert [each.session for each in View().sort("left").shown(rows)] == ["coder", "a", "z"]


def test_what_is_spent_and_held_of_a_months_budget_is_described() -> None:
    month = BudgetRow(
        scope="tenant",
        owner="acme",
        left=(("output", 60.0),),
        spent=(("output", 30.0),),
        held=(("output", 10.0), ("cost", 0.0)),
        every="month",
    )
    assert described(row("a", budgets=(month,))) == (
        "a (acme)  left: tenant's month 60 output (30 output spent, 10 output held)"
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cost"])
def test_what_is_left_of_any_kind_has_room_in_its_column(kind: str) -> None:
    width = next(column.width for column in COLUMNS if column.title == "left")
    for number in (0, 9999, 10_000, 99_949, 999_499, 999_999, 5e7, 99.96e6, 9e11):
        assert len(left(row(budget_left=((kind, number),)))) <= width
    told = {left(row(budget_left=((each, 1.0),))) for each in ("input_uncached", "input_cached")}
    assert len(told) == 2, "they are told apart"
