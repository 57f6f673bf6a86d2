"""Random sessions whose contexts are recast, on servers that die: what was used, charged, recorded
and shown agrees to the token with what an engine of a script has done.

``KEEPWARM_RECAST_TRACES`` says how many (10,000 is the long form: nine minutes of one core with
``-n0 -s``, and it says how often each ``KINDS`` of event came).
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.messages import FinishReason, GenerationRequest
from sessions.durable.account import NOTHING
from sessions.durable.ledger import PriceTable
from sessions.durable.transcript import chain
from sessions.journal.encoding import decode_turn
from sessions.pages.metrics import Metrics
from tests.support.journal_rig import JournalRig
from tests.support.memory_journal import MemoryJournal
from tests.support.recast_loops import G, prompt, result, sums_up, threshold
from tests.support.sessions_rig import END, Event, call, token_ids
from tools_api.items import Compaction

TRACES = int(os.environ.get("KEEPWARM_RECAST_TRACES", "20"))
SEED = int(os.environ.get("KEEPWARM_RECAST_SEED", "1"))
TASK = "the task"
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
PRICES = PriceTable(input_uncached=3_000, input_cached=300, output=15_000)
"""Nano-dollars per million tokens come to whole ones only over many: rounding would show."""
KINDS = (
    "turns",
    "forks",
    "cuts",
    "cuts ahead",
    "cancels",
    "budgets",
    "restarts",
    "turns cut short",
)
"""What comes in traces: ``budgets`` are turns that one of them refused or ended."""
MANY = 100
"""Traces of which none is without each of these."""


@pytest.fixture(scope="module")
def came() -> Iterator[Counter[str]]:
    """What came in all traces of this process."""
    counted: Counter[str] = Counter()
    yield counted
    print(
        f"\n{counted['traces']} traces from seed {SEED} on:", *(f"{counted[k]} {k}," for k in KINDS)
    )
    if counted["traces"] >= MANY:
        assert min(counted[kind] for kind in KINDS) > 0, counted


class Reference(JournalRig):
    """Counts what the engine does for whom, and nothing else."""

    def __init__(self) -> None:
        super().__init__(MemoryJournal(b"f"), prices=PRICES, max_context_tokens=8000)
        self.done: Counter[str] = Counter()
        self.started = set[str]()

    def emit(
        self,
        text: str,
        finish: FinishReason | None = None,
        request: GenerationRequest | None = None,
        **fields: Any,
    ) -> list[Event]:
        request = request or self.engine.last
        turn = self.engine.open[request.request_id]
        if request.request_id not in self.started:
            self.started.add(request.request_id)
            self.done["input"] += len(turn.tokens)
            self.done["cached"] += turn.cached
        self.done["output"] += len(token_ids(text))
        return super().emit(text, finish, request, **fields)


class Trace:
    """One session of random turns, some of them from an earlier response on."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.rig = Reference()
        self.client = self.rig.connect()
        self.name = f"trace {seed}"
        self.ended = list[Any]()
        self.asked = 0
        self.died: Counter[str] = Counter()
        """What turns held whose server died, and those turns."""
        self.came: Counter[str] = Counter(traces=1)
        budget = {"output": self.draw.choice((600, 100_000)), "scope": "session"}
        self.fields: dict[str, Any] = {
            "tools": [G],
            "context_management": threshold(self.draw.choice((1200, 2500))),
        }
        self.options: dict[str, Any] = {
            "compaction": {"ahead": self.draw.random() < 0.5},
            "budget": budget,
        }

    def turn(self) -> None:
        draw, fields = self.draw, dict(self.fields)
        if self.ended:
            last = draw.choice(self.ended) if draw.random() < 0.15 else self.ended[-1]
            self.came["forks"] += last is not self.ended[-1]
            fields["previous_response_id"] = last["id"]
            calls = [item for item in last["output"] if item["type"] == "function_call"]
            text = "x" * draw.randint(1, 300)
            fields["input"] = [result(each["call_id"], text) for each in calls] or text
        else:
            fields["input"] = TASK
        keepwarm = self.options if self.ended else self.options | {"session": self.name}
        self.asked += 1
        self.came["turns"] += 1
        self.client.create(**fields, keepwarm=keepwarm)
        self._finish()

    def _finish(self) -> None:
        """Answer what the engine was asked for, the turn and what was begun beside it; or die."""
        rig, draw = self.rig, self.draw
        while rig.engine.open:
            request = next(iter(rig.engine.open.values())).request
            if draw.random() < 0.03:
                if request.max_new_tokens > len("s" + END) and draw.random() < 0.5:
                    rig.emit("s", None, request)
                self.die()
                return
            self._answer(request)
        response = self.client.events[-1].get("response")
        if response is None:
            return
        told, context = response["keepwarm"], response["keepwarm"].get("context", {})
        self.came["cuts"] += bool(context)
        self.came["cuts ahead"] += "ahead" in context
        self.came["cancels"] += told.get("reason") == "cancelled"
        self.came["budgets"] += told.get("reason") == "budget_exhausted"
        if response["status"] == "completed":
            self.ended.append(response)

    def _answer(self, request: GenerationRequest) -> None:
        rig, draw = self.rig, self.draw
        last = request is rig.engine.last
        if last and sums_up(rig):
            self._say(draw.choice(("a summary" + END, "")), request)
        elif request.max_new_tokens == 0:
            self._say("", request)
        elif draw.random() < 0.05:
            if request.max_new_tokens > len("s" + END) and draw.random() < 0.5:
                rig.emit("s", None, request)
            self.client.send(type="response.cancel")
            if request.request_id in rig.engine.open:
                self._say(END, request)
        else:
            if last:
                assert TASK in prompt(rig)
            self._say(draw.choice((call("g"), "said")) + END, request)

    def _say(self, text: str, request: GenerationRequest) -> None:
        """The output, or as much as there is room for."""
        emitted = self.rig.engine.open[request.request_id].emitted
        room = request.max_new_tokens - len(emitted)
        self.rig.reply(text if len(token_ids(text)) <= room else "x" * room, request)

    def die(self) -> None:
        """The server is gone with what it held, and another finds its journal."""
        rig = self.rig
        for turn in rig.engine.open.values():  # nobody will hear of what it has done
            if turn.started:
                rig.done["input"] -= len(turn.tokens) - len(turn.emitted)
                rig.done["cached"] -= turn.cached
                rig.done["output"] -= len(turn.emitted)
        running = self.client.events[-1]["type"] not in ENDS
        rig.restart()
        assert sum(record.is_turn for record in rig.left) <= running, "only a client's is a turn"
        self.died["turns"] += running
        self.came["restarts"] += 1
        self.came["turns cut short"] += running
        for record in rig.left:
            usage = record.usage
            self.died["input"] += usage.input_tokens
            self.died["cached"] += usage.cached_tokens
            self.died["output"] += usage.output_tokens
        self.client = rig.connect()

    def check(self) -> None:
        """All five say the same."""
        rig, metrics = self.rig, Metrics()
        for report in rig.reports:
            metrics.turn_finished(report)
        usages = [report.usage for report in rig.reports]
        assert rig.done["output"] == sum(usage.output_tokens for usage in usages)
        assert rig.done["input"] == sum(usage.input_tokens for usage in usages)
        assert rig.done["cached"] == sum(usage.cached_tokens for usage in usages)
        for name in ("input", "cached", "output"):
            shown = metrics.registry.get_sample_value(f"keepwarm_{name}_tokens_total")
            assert shown == rig.done[name], name
        all_ = {name: rig.done[name] + self.died[name] for name in ("input", "cached", "output")}
        rows = [decode_turn(row) for row in rig.journal.session_turns("acme", self.name)]
        assert all_["input"] == sum(row.usage.input_tokens for row in rows)
        assert all_["cached"] == sum(row.usage.cached_tokens for row in rows)
        assert all_["output"] == sum(row.usage.output_tokens for row in rows)
        record = rig.journal.session("acme", self.name)
        assert record is not None
        assert record.account.cost == sum(row.cost for row in rows)
        spent = record.account.spent
        assert (spent.input_uncached + spent.input_cached, spent.output) == (
            all_["input"], all_["output"],
        )  # fmt: skip
        session = rig.store.tenant("acme").session(self.name)
        if session is not None and session.ledger.turns:
            assert session.ledger.account.spent == spent
            assert session.ledger.account.held == NOTHING
            assert not session.in_use
        assert spent.output <= self.options["budget"]["output"]
        turns = [report for report in rig.reports if report.is_turn]
        assert len(turns) + self.died["turns"] == self.asked
        assert self.client.connection.num_active == 0


def played(seed: int, turns: int | None = None) -> Trace:
    trace = Trace(seed)
    for _ in range(turns or trace.draw.randint(5, 30)):
        trace.turn()
    return trace


@pytest.mark.parametrize("seed", range(SEED, SEED + TRACES))
def test_what_is_used_charged_recorded_and_shown_agrees(seed: int, came: Counter[str]) -> None:
    trace = played(seed)
    came += trace.came
    trace.check()


def test_everything_comes_in_a_few_traces() -> None:
    came: Counter[str] = Counter()
    for seed in range(SEED, SEED + 10):
        trace = played(seed, 20)
        came += trace.came
        for response in trace.ended[-1:]:
            stored = trace.rig.store.tenant("acme").responses.get(response["id"])
            links = chain(stored.entry) if stored is not None else ()
            came["items kept"] += any(
                isinstance(item, Compaction) for link in links for item in link.input_items
            )
    assert min(came[each] for each in (*KINDS, "items kept")) > 0, came
