"""Random sessions whose contexts are recast: what was used, charged and reported agrees.

``KEEPWARM_RECAST_TRACES`` says how many (10,000 is the long form).
"""

import os
import random
from typing import Any

import pytest

from sessions.durable.account import NOTHING
from tests.support.recast_loops import G, connect, prompt, result, sums_up, threshold
from tests.support.sessions_rig import END, Client, Rig, call

TRACES = int(os.environ.get("KEEPWARM_RECAST_TRACES", "20"))
SEED = int(os.environ.get("KEEPWARM_RECAST_SEED", "1"))
TASK = "the task"


class Trace:
    """One session of random turns, some of them from an earlier response on."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.rig, self.client = connect()
        self.name = f"trace {seed}"
        self.ended = list[Any]()
        self.asked = 0
        budget = {"output": self.draw.choice((600, 100_000)), "scope": "session"}
        self.fields: dict[str, Any] = {
            "tools": [G],
            "context_management": threshold(self.draw.choice((1200, 2500))),
        }
        self.options = {"compaction": {"ahead": self.draw.random() < 0.5}, "budget": budget}

    def turn(self) -> None:
        draw, fields = self.draw, dict(self.fields)
        if self.ended:
            last = draw.choice(self.ended) if draw.random() < 0.15 else self.ended[-1]
            fields["previous_response_id"] = last["id"]
            calls = [item for item in last["output"] if item["type"] == "function_call"]
            text = "x" * draw.randint(1, 300)
            fields["input"] = [result(each["call_id"], text) for each in calls] or text
        else:
            fields["input"] = TASK
        keepwarm = self.options if self.ended else self.options | {"session": self.name}
        self.asked += 1
        self.client.create(**fields, keepwarm=keepwarm)
        self._finish(self.rig, self.client)

    def _finish(self, rig: Rig, client: Client) -> None:
        """Answer what the engine was asked for, the turn and what was begun beside it."""
        while rig.engine.open:
            request = next(iter(rig.engine.open.values())).request
            rig_last = request is rig.engine.last
            if rig_last and sums_up(rig):
                rig.reply(self.draw.choice(("a summary" + END, "")), request)
            elif request.max_new_tokens == 0:
                rig.reply("", request)
            elif self.draw.random() < 0.05:
                client.send(type="response.cancel")
                if request.request_id in rig.engine.open:
                    rig.reply(END, request)
            else:
                if rig_last:
                    assert TASK in prompt(rig)
                said = self.draw.choice((call("g"), "said")) + END
                rig.reply(said, request)
        response = client.events[-1].get("response")
        if response is not None and response["status"] == "completed":
            self.ended.append(response)


@pytest.mark.parametrize("seed", range(SEED, SEED + TRACES))
def test_what_is_used_charged_and_reported_agrees(seed: int) -> None:
    trace = Trace(seed)
    for _ in range(trace.draw.randint(5, 30)):
        trace.turn()
    reports = trace.rig.reports
    session = trace.rig.store.session("acme", trace.name)
    spent = session.ledger.account.spent
    assert session.ledger.account.held == NOTHING
    assert not session.in_use
    assert spent.output == sum(report.usage.output_tokens for report in reports)
    assert spent.input_uncached == sum(report.usage.uncached_tokens for report in reports)
    assert spent.input_cached == sum(report.usage.cached_tokens for report in reports)
    turns = [report for report in reports if report.status != "compaction"]
    assert len(turns) == trace.asked
    budget = trace.options["budget"]["output"]
    assert spent.output <= budget
    assert trace.client.connection.num_active == 0
