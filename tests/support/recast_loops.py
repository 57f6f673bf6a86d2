"""Tool loops whose context is recast, over connections without sockets."""

from typing import Any

from sessions.tenants import Tenants
from sessions.turns.summaries import INSTRUCTION
from tests.support.sessions_rig import END, Client, Rig, call, spelled, tool

G = tool("g")
LONG = "x" * 600


def connect(max_context_tokens: int = 8000, tenants: Tenants | None = None) -> tuple[Rig, Client]:
    rig = Rig(max_context_tokens=max_context_tokens, tenants=tenants)
    return rig, rig.connect()


def prompt(rig: Rig) -> str:
    return spelled(rig.engine.prompt(rig.engine.last))


def result(call_id: str, output: str = LONG) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def threshold(tokens: int) -> list[dict[str, Any]]:
    return [{"type": "compaction", "compact_threshold": tokens}]


def sums_up(rig: Rig) -> bool:
    """Whether a summary is being written."""
    last = rig.engine.last
    return last.request_id in rig.engine.open and INSTRUCTION in prompt(rig)


def play(rig: Rig, client: Client, reply: str, summary: str = "a summary", **fields: Any) -> Any:
    """A turn whose context is summed up before, if that is due."""
    client.create(**fields)
    if sums_up(rig):
        rig.reply(summary + END if summary != "endless" else "endless")
    read = prompt(rig) if rig.engine.last.request_id in rig.engine.open else ""
    rig.reply(reply)
    return client.response, read


def loop(rig: Rig, client: Client, turns: int, tokens: int = 3000, **more: Any) -> list[Any]:
    """Turns of a tool loop, each with a call; a summary is answered with one. Responses, and what
    the model read."""
    fields = {"tools": [G], "context_management": threshold(tokens)} | more
    summary = fields.pop("summary", "a summary")
    done = [play(rig, client, call("g") + END, input="the task", **fields)]
    for number in range(turns):
        last = done[-1][0]
        answer = result(last["output"][-1]["call_id"], f"{number} {LONG}")
        follows = {"previous_response_id": last["id"], "input": [answer]}
        done.append(play(rig, client, call("g") + END, summary, **fields, **follows))
    return done


def sums_of(turn: Any) -> int:
    """Turns that a summary took for this one."""
    context = turn["keepwarm"].get("context")
    return context["summarised"]["turns"] if context else 0


def recast_of(done: list[Any]) -> list[Any]:
    return [each for each in done if "context" in each[0]["keepwarm"]]
