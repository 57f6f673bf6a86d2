"""A context that will soon be due is recast while the client's tools run."""

from collections.abc import Callable
from typing import Any

import pytest

from sessions.tenants import Tenants
from tests.support.keyed_turns import connect_as, spent_by, two_keys
from tests.support.recast_loops import G, connect, play, prompt, result, sums_up, threshold
from tests.support.sessions_rig import END, Client, Rig, call

SHORT = "x" * 100
AHEAD = {"compaction": {"ahead": True}}
FIELDS = {"tools": [G], "context_management": threshold(3000)}


def compute_ahead(rig: Rig, summary: str = "a summary") -> int:
    """Let the engine work on what was begun behind the last turn; how many requests that were."""
    done = 0
    while rig.engine.last.request_id in rig.engine.open:
        rig.reply(summary + END if sums_up(rig) else "")
        done += 1
        assert done < 5
    return done


class Loop:
    """A tool loop whose turns are played one by one."""

    def __init__(
        self,
        *,
        keepwarm: Any = AHEAD,
        output: str = SHORT,
        tenants: Tenants | None = None,
        key: str = "",
        **fields: Any,
    ) -> None:
        """``output``: of each call."""
        self.rig, self.client = connect(tenants=tenants)
        self.client.connection.identify(key)
        self._output = output
        self._fields = FIELDS | {"keepwarm": keepwarm} | fields
        self.turns = [self._turn(input="the task")]
        self.reads = list[str]()

    def _turn(self, **fields: Any) -> Any:
        turn, _ = play(self.rig, self.client, call("g") + END, **self._fields, **fields)
        return turn

    def answer(self, client: Client | None = None, **fields: Any) -> None:
        """The next turn, up to its request to the engine."""
        last, number = self.turns[-1], len(self.turns)
        answer = result(last["output"][-1]["call_id"], f"{number} {self._output}")
        asked = self._fields | {"previous_response_id": last["id"], "input": [answer]}
        (client or self.client).create(**asked | fields)

    def go_on(self, **fields: Any) -> None:
        """The next turn."""
        self.answer(**fields)
        if sums_up(self.rig):
            self.rig.reply("a summary" + END)
        self.reads.append(prompt(self.rig))
        self.rig.reply(call("g") + END)
        self.turns.append(self.client.response)

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(40):
            if done():
                return
            self.go_on()
        raise AssertionError("it did not come")

    @property
    def context(self) -> Any:
        return self.turns[-1]["keepwarm"].get("context")

    @property
    def begun(self) -> bool:
        """Something is computed while the tools run."""
        return self.rig.engine.last.request_id in self.rig.engine.open


def test_a_cut_is_computed_ahead_and_the_turn_behind_it_computes_what_is_new() -> None:
    loop = Loop()
    loop.until(lambda: loop.begun)
    assert loop.turns[-1]["keepwarm"]["tokens"]["input"] < 3000
    assert compute_ahead(loop.rig) == 2
    loop.until(lambda: loop.context is not None)
    tokens = loop.turns[-1]["keepwarm"]["tokens"]
    assert loop.context["ahead"] is True
    assert loop.context["before"] >= 3000
    assert loop.context["summarised"]["turns"]
    assert loop.context["computed"] > 0, "what the summary took is told where the cut is made"
    assert tokens["input"] - tokens["cached"] < 900, "outputs since, and no summary"
    assert "a summary" in loop.reads[-1]
    assert "the task" in loop.reads[-1]


def test_what_is_read_is_what_a_fresh_server_reads_that_is_sent_the_item() -> None:
    loop = Loop()
    loop.until(lambda: loop.begun)
    compute_ahead(loop.rig)
    loop.until(lambda: loop.context is not None)
    rig, _ = connect()
    rig.model.seal = loop.rig.model.seal
    client = rig.connect()
    _, read = play(rig, client, END, input=[loop.turns[-1]["output"][0]], tools=[G])
    assert read == loop.reads[-1]


def test_it_is_done_once_a_cut_and_charged_once() -> None:
    loop = Loop()
    loop.until(lambda: loop.begun)
    compute_ahead(loop.rig)
    before = len(loop.rig.engine.requests)
    turns = len(loop.turns)
    loop.until(lambda: loop.context is not None)
    assert len(loop.rig.engine.requests) - before == len(loop.turns) - turns
    reports = loop.rig.reports
    assert sum(report.status == "compaction" for report in reports) == 2, "summary and prefix"
    session = loop.rig.store.tenant("acme").session(loop.turns[-1]["keepwarm"]["session"])
    assert session.ledger.turns == len(loop.turns)
    spent = session.ledger.account.spent
    assert spent.output == sum(report.usage.output_tokens for report in reports)
    assert spent.input_uncached == sum(report.usage.uncached_tokens for report in reports)
    assert session.ledger.account.held == type(spent)()


def test_it_is_charged_to_the_key_of_the_turn_before_it() -> None:
    loop = Loop(tenants=two_keys(), key="ci")
    loop.until(lambda: loop.begun)
    begun, web = loop.rig.engine.last, connect_as(loop.rig, "web")
    answer = result(loop.turns[-1]["output"][-1]["call_id"])
    other = web.turn("x" + END, previous_response_id=loop.turns[-1]["id"], input=[answer])
    loop.rig.reply("a summary" + END, begun)
    compute_ahead(loop.rig)
    assert loop.rig.reports[-1].status == "compaction"
    assert spent_by(loop.rig, "web") == other["usage"]["total_tokens"]
    used = [report.usage for report in loop.rig.reports]
    total = sum(usage.input_tokens + usage.output_tokens for usage in used)
    assert spent_by(loop.rig, "ci") == total - other["usage"]["total_tokens"]


def test_a_turn_that_comes_sooner_waits_if_it_is_due_and_only_then() -> None:
    loop = Loop()
    loop.until(lambda: loop.begun)
    first = loop.rig.engine.last
    loop.answer()
    assert loop.rig.engine.last is not first, "it is not due"
    loop.rig.reply(call("g") + END)
    loop.turns.append(loop.client.response)
    while loop.rig.engine.last is not first:
        requests = len(loop.rig.engine.requests)
        loop.answer()
        if len(loop.rig.engine.requests) == requests:
            break
        loop.rig.reply(call("g") + END)
        loop.turns.append(loop.client.response)
    told = len(loop.client.events)
    loop.rig.reply("a summary" + END, first)
    loop.rig.reply("")
    assert len(loop.client.events) > told
    assert "a summary" in prompt(loop.rig)
    loop.rig.reply(call("g") + END)
    assert loop.client.response["keepwarm"]["context"]["ahead"] is True


@pytest.mark.parametrize("keepwarm", [{}, {"compaction": {"ahead": False}}])
def test_nothing_is_computed_for_who_does_not_ask(keepwarm: Any) -> None:
    loop = Loop(keepwarm=keepwarm)
    loop.until(lambda: loop.context is not None)
    assert "ahead" not in loop.context


def test_nothing_is_computed_without_a_threshold_that_was_named() -> None:
    loop = Loop(context_management=[{"type": "compaction"}])
    loop.until(lambda: loop.context is not None)
    assert "ahead" not in loop.context


def test_nothing_is_computed_that_the_next_turn_could_not_be_paid_behind() -> None:
    budget = {"input_uncached": 3800, "scope": "session"}
    loop = Loop(keepwarm=AHEAD | {"budget": budget})
    loop.until(lambda: loop.begun or loop.turns[-1]["keepwarm"]["tokens"]["input"] > 2700)
    assert not loop.begun


@pytest.mark.parametrize("summary", ["", "endless"])
def test_where_no_summary_could_be_had_what_is_cleared_alone_is_computed_ahead(
    summary: str,
) -> None:
    loop = Loop()
    loop.until(lambda: loop.begun)
    ends = END if summary != "endless" else ""
    loop.rig.reply(summary + ends)
    loop.rig.reply("")
    requests, turns = len(loop.rig.engine.requests), len(loop.turns)
    loop.until(lambda: loop.context is not None)
    assert len(loop.rig.engine.requests) - requests == len(loop.turns) - turns, "it is asked once"
    assert loop.context["ahead"] is True
    assert loop.context["cleared"]
    assert loop.context["computed"] > 0, "what the summary took is charged and told"
    assert not loop.context["summarised"]["turns"]
    assert any("no summary" in warning for warning in loop.turns[-1]["keepwarm"]["warnings"])


def test_where_nothing_can_be_cleared_either_the_cut_is_left_to_its_turn() -> None:
    loop = Loop(output="")
    loop.until(lambda: loop.begun)
    assert compute_ahead(loop.rig, summary="") == 1
    loop.until(lambda: loop.context is not None)
    assert "ahead" not in loop.context
    assert loop.context["summarised"]["turns"]


def test_what_was_counted_ahead_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    loop.until(lambda: loop.begun)
    compute_ahead(loop.rig)
    counted = list[Any]()
    renderer = type(loop.rig.model.renderer)
    count = renderer.count

    def noted(self: Any, items: Any, options: Any) -> int:
        counted.extend(items)
        return count(self, items, options)

    monkeypatch.setattr(renderer, "count", noted)
    turns = len(loop.turns)
    loop.until(lambda: loop.context is not None)
    said = 2 * (len(loop.turns) - turns)
    assert len(counted) <= said + 2, "what was said since, and what a note takes"


@pytest.mark.parametrize("way", ["engine", "drain", "gone"])
def test_whatever_ends_it_nothing_is_held(way: str) -> None:
    loop = Loop(store=True)
    loop.until(lambda: loop.begun)
    session = loop.rig.store.tenant("acme").session(loop.turns[-1]["keepwarm"]["session"])
    assert session.in_use
    if way == "engine":
        loop.rig.kill_engine()
    elif way == "drain":
        loop.rig.carry(loop.client, loop.client.connection.drain())
    else:
        loop.client.disconnect()
        compute_ahead(loop.rig)
    assert not session.in_use
    assert loop.client.connection.num_active == 0
    assert session.ledger.account.held == type(session.ledger.account.held)()
    client = loop.rig.connect()
    loop.answer(client)
    loop.rig.reply(END)
    assert client.response["status"] == "completed"


def test_nothing_is_begun_behind_a_turn_that_ends_while_the_server_drains() -> None:
    """Who comes next comes to another server, which would have it computed and paid again."""
    before = Loop(store=True)
    before.until(lambda: before.begun)
    loop = Loop(store=True)
    while len(loop.turns) < len(before.turns) - 1:
        loop.go_on()
    assert not loop.begun
    loop.answer()
    asked = len(loop.rig.engine.requests)
    loop.rig.carry(loop.client, loop.client.connection.drain())
    loop.rig.reply(call("g") + END)
    assert loop.client.response["status"] == "completed"
    assert len(loop.rig.engine.requests) == asked
    assert loop.client.connection.num_active == 0


def test_a_fork_from_before_the_cut_is_none_of_it() -> None:
    loop = Loop()
    loop.until(lambda: loop.begun)
    compute_ahead(loop.rig)
    early = loop.turns[2]
    _, read = play(loop.rig, loop.client, END, previous_response_id=early["id"],
                   input=[result(early["output"][-1]["call_id"], "fork")], tools=[G])  # fmt: skip
    assert "a summary" not in read
