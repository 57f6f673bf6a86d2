"""A model with recurrent layers, served: what its turns find again, and how soon they begin.

    python -m benchmarks.hybrid --json

``random:qwen3.5-100m`` over real sockets, and ``random:qwen3-100m``, which has attention alone,
beside it. ``turns``: eight sessions with slots for 16 snapshots, 20 turns each, half of them with a
fork that stays; ``recomputed_tokens`` are those that an earlier turn had run through the model and
a later one ran again. ``long``: seconds to the first token of a turn of 64 tokens behind 8,192, of
a fork of it, and of the same prompt in a session of its own. ``drafts``: forced calls of one
session with and without drafts, by the clock in bfloat16, by the digest of what they say in
float64. ``decode``: a step of eight turns at 8,192 tokens. ``below``: a turn of 64 tokens behind
8,192 that others have driven to host memory, and after a restart, from the disk; of both all that
was run is found again.
"""

import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_loops import EngineLoop, as_served, engine_config, take_turns
from benchmarks.report import Bar, parser, report
from keepwarm import Client, Response
from keepwarm.demo.child_server import child_server
from runtime.model.runner import load_runner
from tools_api.sdk.sync_session import Session

HYBRID, FULL = "random:qwen3.5-100m", "random:qwen3-100m"
SESSIONS, TURNS, SNAPSHOTS = 8, 20, 16
NEW_TOKENS = 64
LONG = {"2k": 2048, "8k": 8192, "32k": 31_744}
"""The longest leaves room for its turns in the window of the model with attention alone."""
ROUNDS = 5
CALLS = 20
FORKS_AT = {1: 5, 3: 9, 5: 13, 7: 17}
"""Sessions that are forked, each behind this turn."""
TOOL = {
    "type": "function",
    "name": "book_a_sale",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "what_was_sold": {"enum": ["lamp", "desk", "chair"]},
            "how_many_of_it": {"type": "integer", "minimum": 1, "maximum": 9},
            "was_it_paid_for": {"type": "boolean"},
        },
        "required": ["what_was_sold", "how_many_of_it", "was_it_paid_for"],
        "additionalProperties": False,
    },
}
BARS = {
    "recomputed_tokens": ("<=", 0.0),
    "turn_over_cold_8k": ("<=", 0.05),
    "fork_over_cold_8k": ("<=", 0.06),
    "turn_32k_over_2k": ("<=", 3.0),
    "drafts_same_digest": (">=", 1.0),
    "drafted_over_plain": ("<=", 0.8),
    "hybrid_decode_over_full": ("<=", 0.7),
    "from_host_over_cold_8k": ("<=", 0.08),
    "from_disk_after_restart_over_cold_8k": ("<=", 0.15),
}
PARTS = {
    "turns": ["recomputed_tokens"],
    "long": ["turn_over_cold_8k", "fork_over_cold_8k", "turn_32k_over_2k"],
    "drafts": ["drafts_same_digest", "drafted_over_plain"],
    "decode": ["hybrid_decode_over_full"],
    "below": ["from_host_over_cold_8k", "from_disk_after_restart_over_cold_8k"],
}
BELOW_BLOCKS, BELOW_ROUNDS = 1200, 3
"""Blocks of the device: for two transcripts of 8,192 tokens, which a third one drives out."""


@contextmanager
def serving(model: str, *options: str) -> Iterator[Client]:
    """A client of a server of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        child_server(["--model", model, *options], log=Path(folder) / "log") as server,
        Client(server.url) as client,
    ):
        yield client


def text(rng: np.random.Generator, tokens: int) -> str:
    """Letters, each of which is a token of the presets' vocabulary."""
    return bytes(rng.integers(ord("a"), ord("z") + 1, tokens).astype(np.uint8)).decode()


def ran(response: Response) -> int:
    """Tokens of a transcript that the model has run: all but the last one drawn."""
    return response.usage.input_tokens + response.usage.output_tokens - 1


def recomputed_tokens() -> dict[str, Any]:
    """Turns of sessions beside each other, and of forks of some."""
    recomputed, turns = 0, 0

    def play(client: Client, number: int) -> tuple[int, int]:
        rng, lost, played = np.random.default_rng(number), 0, 0
        session = client.session(name=f"s{number}")
        last = say(session, text(rng, 4 * NEW_TOKENS))
        for turn in range(1, TURNS):
            if turn == FORKS_AT.get(number):
                fork = say(session.fork(), text(rng, NEW_TOKENS))
                lost += max(0, ran(last) - fork.usage.cached_tokens)
                played += 1
            response = say(session, text(rng, NEW_TOKENS))
            lost += max(0, ran(last) - response.usage.cached_tokens)
            last, played = response, played + 1
        return lost, played

    slots = str(SESSIONS + SNAPSHOTS)
    options = ("--max-running", str(SESSIONS), "--state-slots", slots, "--kv-cache-mib", "1024")
    with serving(HYBRID, *options) as client, ThreadPoolExecutor(SESSIONS) as threads:
        for lost, played in threads.map(lambda number: play(client, number), range(SESSIONS)):
            recomputed, turns = recomputed + lost, turns + played
    return {"turns": turns, "recomputed_tokens": recomputed}


def say(session: Session, said: str, output_tokens: int = 8, **options: Any) -> Response:
    """A turn whose output has this many tokens at most."""
    return session.respond(said, max_output_tokens=output_tokens, temperature=0, **options)


def first_token_seconds(model: str) -> dict[str, dict[str, float]]:
    """Medians by length: cold, a turn behind, and a fork of it."""
    found: dict[str, dict[str, float]] = {}
    rng = np.random.default_rng(0)
    with serving(model, "--kv-cache-mib", "6144", "--max-running", "8") as client:
        say(client.session(), text(rng, 512))
        for name, length in LONG.items():
            taken: dict[str, list[float]] = {"cold": [], "turn": [], "fork": []}
            rounds = ROUNDS if length < LONG["32k"] else 1
            for _ in range(rounds):
                session = client.session()
                note(taken["cold"], say(session, text(rng, length), 1))
                for _ in range(ROUNDS // rounds):
                    note(taken["fork"], say(session.fork(), text(rng, NEW_TOKENS), 1))
                    note(taken["turn"], say(session, text(rng, NEW_TOKENS), 1))
            found[name] = {way: statistics.median(times) for way, times in taken.items()}
    return found


def note(times: list[float], response: Response) -> None:
    """One more time to a first token, where there was one."""
    times.append(response.duration_s if response.ttft_s is None else response.ttft_s)


def forced_calls(drafts: int, dtype: str) -> tuple[str, float]:
    """A digest of the calls of one session, and the seconds that they took."""
    said, digest = np.random.default_rng(1), hashlib.sha256()
    options = ("--max-draft-tokens", str(drafts), "--dtype", dtype)
    options += ("--kv-cache-mib", "1024", "--max-running", "8")
    with serving(HYBRID, *options) as client:
        session, given = client.session(tools=[TOOL]), text(said, NEW_TOKENS)
        say(client.session(), text(said, NEW_TOKENS))
        started = time.perf_counter()
        for _ in range(CALLS):
            response = session.respond(
                given, tool_choice="required", temperature=0, max_output_tokens=200
            )
            digest.update(json.dumps([call.arguments for call in response.calls]).encode())
            given = [  # type: ignore[assignment]
                {"type": "function_call_output", "call_id": call.call_id, "output": "booked"}
                for call in response.calls
            ] or "Go on."
        taken = time.perf_counter() - started
    return digest.hexdigest(), taken


def decode_seconds(threads: int) -> dict[str, float]:
    """A step of eight turns of each model, in turns."""
    context, calls = LONG["8k"], {}
    blocks = SESSIONS * 2 * context // 16
    for name, model in (("hybrid", HYBRID), ("full", FULL)):
        config = engine_config(
            Path(model), {"num_blocks": blocks, "threads": threads, "max_running": SESSIONS}
        )
        runner = load_runner(config)
        loop = EngineLoop(runner, seed=8)
        loop.start_decoding(batch=SESSIONS, context=context)
        calls[name] = as_served(runner, threads, loop.step)
    return {name: time.median for name, time in take_turns(calls, rounds=2 * ROUNDS).items()}


def from_below_seconds(length: int) -> dict[str, list[float]]:
    """Seconds to the first token: cold, from host memory, and from the disk after a restart.

    Raises:
        AssertionError: something that was run is computed again.
    """
    rng = np.random.default_rng(0)
    taken: dict[str, list[float]] = {"cold": [], "host": [], "restart": []}
    with tempfile.TemporaryDirectory() as folder:
        options = ["--num-blocks", str(BELOW_BLOCKS), "--max-running", "2", "--state-slots", "3"]
        options += ["--host-kv-mib", "512", "--host-state-mib", "256", "--disk-kv-mib", "2048"]
        options += ["--disk-kv-folder", f"{folder}/kv", "--journal", f"{folder}/journal"]
        last: list[Response] = []
        with serving(HYBRID, *options) as client:
            say(client.session(), text(rng, 512))
            sessions = [client.session() for _ in range(BELOW_ROUNDS + 1)]
            for session in sessions:
                last.append(say(session, text(rng, length), 1))
                note(taken["cold"], last[-1])
            for number, session in enumerate(sessions[:BELOW_ROUNDS]):
                last[number] = come_back(session, last[number], rng, taken["host"])
        with serving(HYBRID, *options) as client:
            say(client.session(), text(rng, 512))
            for before in last[:BELOW_ROUNDS]:
                come_back(client.session(head=before.id), before, rng, taken["restart"])
    return taken


def come_back(
    session: Session, before: Response, rng: np.random.Generator, taken: list[float]
) -> Response:
    """A turn behind one whose keys and values and whose state have left the device."""
    response = say(session, text(rng, NEW_TOKENS), 1)
    assert response.usage.cached_tokens == ran(before), (response.usage, before.usage)
    note(taken, response)
    return response


def measure(parts: list[str], threads: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Figures, and the values that bars are put to."""
    figures: dict[str, Any] = {}
    values: dict[str, float] = {}
    if "turns" in parts:
        figures["turns"] = recomputed_tokens()
        values["recomputed_tokens"] = figures["turns"]["recomputed_tokens"]
    if "long" in parts:
        ours, full = first_token_seconds(HYBRID), first_token_seconds(FULL)
        figures["first_token_s"] = {"hybrid": ours, "full": full}
        figures["full_turn_32k_over_2k"] = full["32k"]["turn"] / full["2k"]["turn"]
        values["turn_over_cold_8k"] = ours["8k"]["turn"] / ours["8k"]["cold"]
        values["fork_over_cold_8k"] = ours["8k"]["fork"] / ours["8k"]["cold"]
        values["turn_32k_over_2k"] = ours["32k"]["turn"] / ours["2k"]["turn"]
    if "drafts" in parts:
        digests = {forced_calls(drafts, "float64")[0] for drafts in (0, 16)}
        values["drafts_same_digest"] = float(len(digests) == 1)
        times: dict[int, list[float]] = {0: [], 16: []}
        for _ in range(3):
            for drafts, taken in times.items():
                taken.append(forced_calls(drafts, "bfloat16")[1])
        figures["forced_calls_s"] = {str(drafts): taken for drafts, taken in times.items()}
        plain, drafted = (statistics.median(times[drafts]) for drafts in (0, 16))
        values["drafted_over_plain"] = drafted / plain
    if "below" in parts:
        below = from_below_seconds(LONG["8k"])
        figures["from_below_s"] = below
        cold, host, restart = (statistics.median(below[way]) for way in below)
        values["from_host_over_cold_8k"] = host / cold
        values["from_disk_after_restart_over_cold_8k"] = restart / cold
    if "decode" in parts:
        figures["decode_s"] = decode_seconds(threads)
        taken_s = figures["decode_s"]
        values["hybrid_decode_over_full"] = taken_s["hybrid"] / taken_s["full"]
    return figures, values


def main(argv: list[str] | None = None) -> int:
    """Serve both models and say what their turns cost."""
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--threads", type=int, default=2, help="of a decode step")
    arguments = options.parse_args(argv)
    figures, values = measure(arguments.parts, arguments.threads)
    wanted = [name for part in arguments.parts for name in PARTS[part]]
    bars = [
        Bar(name=name, value=values[name], op=BARS[name][0], bar=BARS[name][1])  # type: ignore[arg-type]
        for name in wanted
    ]
    return report("hybrid", figures, bars, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
