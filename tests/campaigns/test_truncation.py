"""Agents of any habit in a window that is too small for what they say, under ``truncation: auto``.

KEEPWARM_TRUNCATED_TURNS sets how many turns are played (10^5 for a campaign),
KEEPWARM_TRUNCATION_SEED where they begin; a failure names its seed.
"""

import os
import random
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from sessions.durable.shortened import is_shortened
from sessions.durable.transcript import Entry, chain, chain_ids
from tests.support.journal_rig import FINGERPRINT, JournalRig
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import END, Client, call, spelled, tool
from tools_api.item_reading import parse_items
from tools_api.items import (
    Call,
    CallOutput,
    Item,
    Message,
)

TURNS = int(os.environ.get("KEEPWARM_TRUNCATED_TURNS", "600"))
SEED = int(os.environ.get("KEEPWARM_TRUNCATION_SEED", "0"))
PER_RUN = 60
TASK = "<The task: "
TOOLS = [tool("f"), tool("g")]

Wire = dict[str, Any]


@dataclass(slots=True)
class Line:
    """What a client knows of one line of a conversation."""

    said: list[Wire] = field(default_factory=list)
    """All items, as a client keeps them that resends its history."""
    response_id: str | None = None
    open_calls: list[str] = field(default_factory=list)
    past_calls: list[str] = field(default_factory=list)
    prompt: str = ""
    """What the model had read and written when its last turn ended."""


def message(role: str, text: str) -> Wire:
    return {"type": "message", "role": role, "content": text}


def output(call_id: str, text: str) -> Wire:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


class Agent:
    """One conversation with its forks, on one server that may be started again."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.window = self.rng.choice([1500, 2500, 4000])
        self.rig = JournalRig(MemoryJournal(FINGERPRINT), max_context_tokens=self.window)
        self.fields: Wire = {"tools": TOOLS, "truncation": "auto", "instructions": "Obey."}
        if self.rng.random() < 0.3:
            self.fields["reasoning"] = {"effort": "low"}
        if self.rng.random() < 0.3:
            self.fields["max_output_tokens"] = 300
        self.task = TASK + "t" * self.rng.choice([10, 60, 200, self.window // 2, self.window * 3])
        self.lines = [Line()]
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        rng = self.rng
        if rng.random() < 0.05:
            self.rig.restart()
        line = rng.choice(self.lines[-3:])
        if line.response_id and rng.random() < 0.1:
            line = deepcopy(line)
            self.lines.append(line)
        new = self._input(line)
        warm_up = rng.random() < 0.05
        resend = rng.random() < 0.5 or not line.response_id
        fields = dict(self.fields)
        if resend:
            fields["input"] = [*line.said, *new]
        else:
            fields |= {"input": new, "previous_response_id": line.response_id}
        if warm_up:
            fields["generate"] = False
        client = self.rig.connect()
        client.create(**fields)
        if client.last["type"] == "error":
            self._refused(client, fields["input"])
            return
        request, engine = self.rig.engine.last, self.rig.engine
        prompt = spelled(engine.prompt(request))
        again = self.rig.connect()
        again.create(**fields)
        assert spelled(engine.prompt(engine.last)) == prompt, "cut in another way"
        again.disconnect()
        self.rig.reply("" if warm_up else self._reply(), request)
        self._check(line, new, client, prompt)

    def _input(self, line: Line) -> list[Wire]:
        rng, new = self.rng, list[Wire]()
        if not line.said:
            if rng.random() < 0.2:
                new.append(message("developer", "Be brief."))
            new.append(message("user", self.task))
            if rng.random() < 0.2:
                new.append(message("user", "Begin."))
            return new
        calls = list(line.open_calls)
        rng.shuffle(calls)
        new += [output(call_id, self._text("o")) for call_id in calls]
        if line.past_calls and rng.random() < 0.05:
            new.append(output(rng.choice(line.past_calls), self._text("late ")))
        if not new or (rng.random() < 0.2 and "<late" not in str(new[-1])):
            role = "user" if rng.random() < 0.8 else rng.choice(["system", "developer"])
            new += [message(role, self._text("m")) for _ in range(rng.randint(1, 2))]
        return new

    def _text(self, letter: str) -> str:
        length = self.rng.choice([5, 30, 100, 100, 300, self.window // 3, self.window * 2])
        if length > 300 and self.rng.random() < 0.7:
            length = 50
        return f"<{letter}{self.rng.randrange(1000)} " + "." * length + ">"

    def _reply(self) -> str:
        rng = self.rng
        text = "think</think>" * rng.randint(0, 1) if "reasoning" in self.fields else ""
        text = f"<think>{text}" if text else ""
        kind = rng.random()
        if kind < 0.5:
            calls = [call(rng.choice("fg")) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
            return text + "\n".join(calls) + END
        if kind < 0.6:
            return text + "cut short"
        return text + "answer " * rng.randint(1, 20) + END

    def _refused(self, client: Client, said: list[Wire]) -> None:
        """Only what nothing can be cut of is too long; a second output for a call may be refused
        as such."""
        error = client.last["error"]
        codes = ["context_length_exceeded", "missing_required_parameter"]
        if any("<late" in str(item.get("output")) for item in said):
            codes.append("invalid_value")
        assert error["code"] in codes, error
        self.counts[error["code"]] += 1

    def _check(self, line: Line, new: list[Wire], client: Client, prompt: str) -> None:
        response = client.response
        assert response["status"] in ("completed", "incomplete"), response
        stored = self.rig.store.tenant("acme").responses.get(response["id"])
        assert stored is not None
        entry = stored.entry
        told = [w for w in response["keepwarm"]["warnings"] if w.startswith("truncation: ")]
        check_prompt(entry, prompt)
        assert response["usage"]["input_tokens"] < self.window or not response["output"]
        lost = [each for each in told if each.endswith("like its call")]
        late = [item for item in new if "<late" in str(item.get("output"))]
        new_late = [item for item in late if any(repr(item["call_id"]) in each for each in lost)]
        check_items(items_of(entry), self.task, [item for item in new if item not in new_late])
        told = [each for each in told if each not in lost]
        if not told and line.prompt:
            assert prompt.startswith(line.prompt), "told nothing, and something else is gone"
        self.counts["cuts"] += bool(told)
        self.counts["turns"] += 1
        if entry.left_out.tokens:
            self.counts["behind a cut"] += 1
        line.said += [*new, *response["output"]]
        line.response_id = response["id"]
        line.past_calls += line.open_calls
        line.open_calls = [
            item["call_id"]
            for item in line.said
            if item["type"] == "function_call" and item["status"] == "completed"
        ]
        answered = {i["call_id"] for i in line.said if i["type"] == "function_call_output"}
        line.open_calls = [each for each in line.open_calls if each not in answered]
        # A warm-up is no proof of being the same conversation where its history is resent.
        whole = spelled(chain_ids(entry.header, entry, entry.input_ids[:0]))
        line.prompt = whole if response["output"] else ""


def items_of(entry: Entry) -> list[Item]:
    """All that the model has read and written, in order."""
    links = reversed(list(chain(entry)))
    return [item for link in links for item in (*link.input_items, *link.output_items)]


def check_prompt(entry: Entry, prompt: str) -> None:
    ids = chain_ids(entry.header, entry, entry.input_ids[:0])
    assert len(ids) == len(entry.header.ids) + entry.num_tokens
    assert spelled(ids).startswith(prompt)


def check_items(items: list[Item], task: str, new: list[Wire]) -> None:
    """Calls have their outputs and outputs their calls; the task and what is new are there."""
    called, answered = set[str](), set[str]()
    for item in items:
        if isinstance(item, Call):
            called.add(item.call_id)
        elif isinstance(item, CallOutput):
            assert item.call_id in called, f"{item.call_id} has no call"
            answered.add(item.call_id)
    first = next(item for item in items if isinstance(item, Message) and item.role == "user")
    assert first.text == task or is_shortened(first.text, task), "the task is gone"
    for last in parse_items(new)[-1:]:
        assert any(_is_of(item, last) for item in items), "the newest is gone"


def _is_of(item: Item, whole: Item) -> bool:
    if isinstance(item, Message) and isinstance(whole, Message):
        return item.text == whole.text or is_shortened(item.text, whole.text)
    if isinstance(item, CallOutput) and isinstance(whole, CallOutput):
        same = item.output == whole.output or is_shortened(item.output, whole.output)
        return same and item.call_id == whole.call_id
    return False


def test_what_has_to_stay_stays_and_cuts_are_told() -> None:
    counts: Counter[str] = Counter()
    for run in range(max(1, TURNS // PER_RUN)):
        seed = SEED + run
        agent = Agent(seed)
        turn = 0
        try:
            for turn in range(PER_RUN):  # noqa: B007
                agent.step()
        except Exception as error:
            raise AssertionError(f"seed {seed}, turn {turn}: {error!r}") from error
        counts += agent.counts
    print(dict(counts))
    assert counts["cuts"] > counts["turns"] // 50
    assert counts["behind a cut"] > counts["turns"] // 3
