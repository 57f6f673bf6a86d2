"""Tool loops through full windows, one in each shape of compaction, and what they cost.

Each is played by a client as one of these is written: it keeps or resends what its shape asks for,
and knows nothing of the server but its answers.
"""

import json
import statistics
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sessions.turns.summaries import INSTRUCTION
from tools_api.item_reading import unpacked

WINDOW = 4096
THRESHOLD = 3000
TASK = "Count what the shop has sold today, item by item."
OUTPUT = "The shop sold {} of item {} today, at the usual price in cash. " * 2
PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL_S = 2.0
BLOCK = 16
CLEARED_WINDOW = 24_576
CLEARED_TIMES = 9
"""Where outputs are cleared and nothing else, 200 calls and as many notes have to fit: a window six
times as long, and outputs nine times."""


@dataclass(slots=True)
class Loop:
    """What came of one loop."""

    statuses: list[str] = field(default_factory=list)
    prompts: list[tuple[int, int]] = field(default_factory=list)
    """Of each turn's prompt its tokens, and those that were cached."""
    cuts: list[dict[str, Any]] = field(default_factory=list)
    cut_turns: set[int] = field(default_factory=set)
    ttft_ms: list[float] = field(default_factory=list)
    with_task: list[bool] = field(default_factory=list)

    def took(self, response: dict[str, Any]) -> None:
        """A turn has ended."""
        tokens = response["keepwarm"]["tokens"]
        if "context" in response["keepwarm"]:
            self.cut_turns.add(len(self.prompts))
            self.cuts.append(response["keepwarm"]["context"])
        self.prompts.append((tokens["input"], tokens["cached"]))
        self.ttft_ms.append(response["keepwarm"]["timing"]["ttft_ms"] or 0.0)

    @property
    def transcript(self) -> int:
        """Tokens of all that was said, as if nothing had ever been left out."""
        grown = [
            tokens - before
            for turn, ((before, _), (tokens, _)) in enumerate(
                zip(self.prompts, self.prompts[1:], strict=False), start=1
            )
            if turn not in self.cut_turns
        ]
        each = statistics.median(grown) if grown else 0
        return round(self.prompts[0][0] + each * (len(self.prompts) - 1)) if self.prompts else 0

    @property
    def hit_ratio(self) -> float:
        """Of turns that do not cut, but the first."""
        kept = [p for n, p in enumerate(self.prompts) if n and n not in self.cut_turns]
        return sum(cached for _, cached in kept) / max(sum(tokens for tokens, _ in kept), 1)

    def not_shared(self, head: int) -> int:
        """Of the ``head`` that stays of each prompt, the most tokens that a turn behind a cut
        computed."""
        return max((head - self.prompts[turn][1] for turn in self.cut_turns), default=0)

    @property
    def half_missed(self) -> float:
        """The share of turns with less than half of their prompt cached."""
        missed = [cached * 2 < tokens for tokens, cached in self.prompts[1:]]
        return statistics.mean(missed) if missed else 0.0


class Server:
    """One served model, asked over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a body."""
        asked = urllib.request.Request(
            self._url + path,
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=300) as answer:
            told: dict[str, Any] = json.load(answer)
            return told

    def count(self, body: dict[str, Any]) -> int:
        """The tokens of a prompt."""
        return int(self.post("/responses/input_tokens", body)["input_tokens"])


TOOL = {"type": "function", "name": "count_sales", "parameters": PARAMETERS, "strict": True}
ASKED: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "temperature": 0}


def outputs(name: str, times: int = 1) -> Iterator[str]:
    """What the tool gives, so many times as long, each time something else, in each loop too: none
    finds in the cache what another left there."""
    number = 0
    while True:
        number += 1
        yield f"{name}: " + OUTPUT.format(*[number * 7 % 100, number] * 2) * times


def chain_loop(
    server: Server, turns: int, *, triggers: bool = False, tool_s: float | None = None
) -> Loop:
    """Responses on a chain: ``context_management``, or a trigger by a client that counts the
    tokens itself, as Codex does. ``tool_s``: tools take so long, and cuts are computed ahead."""
    name = "trigger" if triggers else "chain" if tool_s is None else "ahead"
    loop, tool, last = Loop(), outputs(name), None
    fields = dict(ASKED)
    if not triggers:
        fields["context_management"] = [{"type": "compaction", "compact_threshold": THRESHOLD}]
    if tool_s is not None:
        fields["keepwarm"] = {"compaction": {"ahead": True}}
    for _ in range(turns):
        given: Any = TASK
        if last is not None:
            if tool_s is not None and loop.prompts[-1][0] > THRESHOLD * 4 // 5:
                time.sleep(tool_s)
            fields["previous_response_id"] = last["id"]
            given = _answers(last["output"], next(tool)) or "Go on."
        last = server.post("/responses", fields | {"input": given})
        loop.statuses.append(last["status"])
        loop.took(last)
        _look_for_task(loop, last)
        if triggers and last["keepwarm"]["tokens"]["input"] >= THRESHOLD:
            given = [*(_answers(last["output"], next(tool)) or []), {"type": "compaction_trigger"}]
            last = server.post("/responses", fields | _follows(last) | {"input": given})
            context = last["keepwarm"]["context"]
            context["anyway"] = server.count({"input": str(given[0].get("output"))})
            loop.cuts.append(context)
            loop.cut_turns.add(len(loop.prompts))
            _look_for_task(loop, last)
    return loop


def _follows(last: dict[str, Any]) -> dict[str, Any]:
    return {"previous_response_id": last["id"]}


def _answers(output: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": text}
        for item in output
        if item["type"] == "function_call"
    ]


def _look_for_task(loop: Loop, response: dict[str, Any]) -> None:
    """In what is read instead of the turns before a cut: items that stay, then the item."""
    output = response.get("output") or response.get("content") or []
    for place, item in enumerate(output):
        if item["type"] == "compaction":
            read = [*output[:place], *unpacked(item["encrypted_content"])["items"]]
            loop.with_task.append(TASK in json.dumps(read))


def alone_loop(server: Server, turns: int) -> Loop:
    """Responses by a client that compacts between its turns (``POST /v1/responses/compact``) and
    begins a new chain with what comes back."""
    loop, tool = Loop(), outputs("alone")
    fields: dict[str, Any] = ASKED | {"input": TASK}
    for _ in range(turns):
        last = server.post("/responses", fields)
        loop.statuses.append(last["status"])
        loop.took(last)
        given: Any = _answers(last["output"], next(tool)) or [{"role": "user", "content": "Go on."}]
        if last["keepwarm"]["tokens"]["input"] < THRESHOLD:
            fields = ASKED | _follows(last) | {"input": given}
            continue
        asked = {"model": "default", "tools": [TOOL], "input": given} | _follows(last)
        made = server.post("/responses/compact", asked)
        context = made["keepwarm"]["context"]
        context["anyway"] = server.count({"input": str(given[0].get("output"))})
        loop.cuts.append(context)
        loop.cut_turns.add(len(loop.prompts))
        _look_for_task(loop, made)
        fields = ASKED | {"input": [*made["output"], {"role": "user", "content": "Go on."}]}
    return loop


def resent_loop(server: Server, turns: int) -> Loop:
    """Chat completions: the whole history each time."""
    loop, tool = Loop(), outputs("resent")
    messages: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    function = {key: TOOL[key] for key in ("name", "parameters")}
    for _ in range(turns):
        answer = server.post("/chat/completions", {
            "messages": messages, "temperature": 0, "tool_choice": "required",
            "tools": [{"type": "function", "function": function}],
            "keepwarm": {"context": {"compact_threshold": THRESHOLD}},
        })  # fmt: skip
        message = answer["choices"][0]["message"]
        loop.statuses.append("completed")
        loop.took(answer)
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": next(tool)}
            for call in message.get("tool_calls") or []
        ]
    return loop


def messages_loop(server: Server, turns: int, edit: dict[str, Any]) -> Loop:
    """Anthropic's: the whole history each time, one edit."""
    loop = Loop()
    tool = outputs(edit["type"], CLEARED_TIMES if "clear" in edit["type"] else 1)
    messages: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    for _ in range(turns):
        answer = server.post("/messages", {
            "messages": messages, "max_tokens": 200, "temperature": 0,
            "tools": [{"name": TOOL["name"], "input_schema": PARAMETERS}],
            "tool_choice": {"type": "any"}, "context_management": {"edits": [edit]},
        })  # fmt: skip
        loop.statuses.append("completed" if answer["stop_reason"] == "tool_use" else "other")
        loop.took(answer)
        _look_for_task(loop, answer)
        messages.append({"role": "assistant", "content": answer["content"]})
        uses = [block for block in answer["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": use["id"], "content": next(tool)} for use in uses
        ]
        messages.append({"role": "user", "content": results or "Go on."})
    return loop


def client_summary(server: Server, turns: int) -> int:
    """Tokens computed for a summary that a client asks for without its tools."""
    tool, last = outputs("client"), server.post("/responses", ASKED | {"input": TASK})
    for _ in range(turns):
        given = _answers(last["output"], next(tool))
        last = server.post("/responses", ASKED | _follows(last) | {"input": given})
    given = [*_answers(last["output"], next(tool)), {"role": "user", "content": INSTRUCTION}]
    summed = server.post(
        "/responses", _follows(last) | {"input": given, "max_output_tokens": 16, "temperature": 0}
    )
    tokens = summed["keepwarm"]["tokens"]
    return int(tokens["input"] - tokens["cached"])


def ahead_ratio(server: Server, loop: Loop) -> float | None:
    """Time to the first token behind a cut over that of a turn with as many new tokens behind as
    many that are cached, p50."""
    ratios = []
    line = OUTPUT.format(*"1234") + "\n"
    of_line = (server.count({"input": line * 21}) - server.count({"input": line})) / 20
    for turn, cut in zip(sorted(loop.cut_turns), loop.cuts, strict=True):
        if "ahead" not in cut:
            continue  # it was not computed while tools ran
        tokens, cached = loop.prompts[turn]
        told = f"Cut {turn}. " + line * round(cached / of_line)
        long = server.post("/responses", ASKED | {"input": told})
        sentence = f"Cut {turn}. " + OUTPUT.format(*"5678")
        each = server.count({"input": sentence * 2}) - server.count({"input": sentence})
        asked = _answers(long["output"], sentence * max(round((tokens - cached) / each), 1))
        ordinary = Loop()
        for _ in range(3):
            time.sleep(TOOL_S)  # as before the turn behind the cut: a machine at rest answers later
            ordinary.took(server.post("/responses", ASKED | _follows(long) | {
                "input": [*asked, {"role": "user", "content": f"Go on. {len(ordinary.prompts)}"}],
            }))  # fmt: skip
            # Said again it is found: what is asked has to be new each time.
            asked = [each | {"output": f"{len(ordinary.prompts)} {each['output']}"}
                     for each in asked]  # fmt: skip
        ratios.append(loop.ttft_ms[turn] / statistics.median(ordinary.ttft_ms))
    return statistics.median(ratios) if ratios else None
