"""How many tokens a forward pass yields inside tool calls, and what that is worth.

The first part needs no model: recorded sessions are played through tokenizer, grammar and
drafter, and passes are counted (``benchmarks.oracle``). Forced tokens alone, then with
copying from the session, then also from the tenant's earlier calls; over the synthetic tool
sessions and over real airline-desk sessions.

The second part is live: the shipped model in the real engine, with and without
(``benchmarks.speculation_live``). Decoding alone is timed, on one thread.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bpe import train_tokenizer
from benchmarks.oracle import Call, Counts, Oracle, Session, tool_output, user
from benchmarks.report import Bar, DataMissing, data_file, parser, report, report_missing
from benchmarks.speculation_live import measure
from runtime.drafting.drafter import InterleavedDrafter
from runtime.grammar.compiler import GrammarCompiler
from runtime.tokenizer import Tokenizer
from tools_api.items import Item
from tools_api.tools import FunctionTool

SEED = 0
INDEX_BYTES = 64 << 20
MEMORY_BYTES = 64 << 20


def bars(figures: dict[str, Any]) -> list[Bar]:
    def bar(name: str, op: str, value: float) -> Bar:
        return Bar(name=name, value=figures.get(name), op=op, bar=value)  # type: ignore[arg-type]

    return [
        bar("tokens_per_forward_forced", ">=", 1.9),
        bar("tokens_per_forward_session", ">=", 4.3),
        bar("forced_wrong", "<=", 0),
        bar("speedup_batch_1", ">=", 2.0),
        bar("speedup_batch_32", ">=", 1.1),
        bar("speedup_4k", ">=", 1.4),
        bar("speedup_text", ">=", 0.95),
    ]


def synthetic_sessions(data: Path) -> list[Session]:
    sessions = []
    for line in data_file(data, "structured/transcripts.jsonl").read_text().splitlines():
        row = json.loads(line)
        events: list[Item | str | Call] = []
        for kind, value in row["events"]:
            if kind == "call":
                events.append(Call(name=value["name"], arguments=value["arguments"]))
            elif kind == "say":
                events.append(value)
            else:
                events.append(user(value) if kind == "user" else tool_output(value))
        tools = tuple(
            FunctionTool(
                name=tool["name"],
                description=tool.get("description"),
                parameters=tool["parameters"],
            )
            for tool in row["tools"]
        )
        sessions.append(Session(name=row["id"], system=None, tools=tools, events=tuple(events)))
    return sessions


def airline_sessions(data: Path) -> list[Session]:
    def rows(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in data_file(data, name).read_text().splitlines()]

    systems = {row["system"]: row["text"] for row in rows("traces/tau_airline.systems.jsonl")}
    tools = tuple(
        FunctionTool(name=row["name"], description=row["description"], parameters=row["schema"])
        for row in rows("schemas/tools.jsonl")
        if row["source"].startswith("tau-bench/airline")
    )
    return [
        Session(
            name=row["id"],
            system=systems[row["system"]],
            tools=tools,
            events=tuple(event for m in row["messages"] for event in _airline_events(m)),
        )
        for row in rows("traces/tau_airline.texts.jsonl")
    ]


def _airline_events(message: dict[str, Any]) -> list[Item | str | Call]:
    content = message.get("content") or ""
    if message["role"] == "user":
        return [user(content)]
    if message["role"] == "tool":
        return [tool_output(content)]
    events: list[Item | str | Call] = []
    for call in message.get("tool_calls") or ():
        arguments = call["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        events.append(Call(name=call["name"], arguments=arguments))
    return events or [content]


def play_all(
    sessions: Sequence[Session],
    tokenizer: Tokenizer,
    compiler: GrammarCompiler,
    *,
    drafts: bool,
    remembers: bool,
) -> Counts:
    drafter = InterleavedDrafter(
        end_of_turn_ids=tokenizer.end_of_turn_ids,
        max_index_bytes=INDEX_BYTES,
        max_memory_bytes=MEMORY_BYTES,
    )
    oracle = Oracle(tokenizer, compiler, drafter if drafts else None, remembers=remembers)
    counts = Counts()
    for session in sessions:
        oracle.play(session, counts)
    return counts


def tokens_per_forward(
    name: str, sessions: Sequence[Session], tokenizer: Tokenizer
) -> dict[str, Any]:
    compiler = GrammarCompiler(tokenizer, max_cache_bytes=256 << 20)
    ways = {
        "forced": play_all(sessions, tokenizer, compiler, drafts=False, remembers=False),
        "session": play_all(sessions, tokenizer, compiler, drafts=True, remembers=False),
        "memory": play_all(sessions, tokenizer, compiler, drafts=True, remembers=True),
    }
    forced, session = ways["forced"], ways["session"]
    return {
        f"{name}_calls": forced.calls,
        f"{name}_calls_skipped": forced.skipped,
        f"{name}_call_tokens": forced.tokens,
        f"{name}_forced_share": forced.forced / forced.tokens,
        f"{name}_forced_wrong": sum(way.forced_wrong for way in ways.values()),
        **{f"{name}_tokens_per_forward_{k}": w.tokens_per_forward for k, w in ways.items()},
        f"{name}_draft_acceptance": session.accepted / session.drafted,
        f"{name}_propose_p50_us": 1e6 * float(np.median(session.propose_s)),
        f"{name}_propose_p99_us": 1e6 * float(np.quantile(session.propose_s, 0.99)),
    }


def main(arguments: list[str] | None = None) -> int:
    given = parser(__doc__).parse_args(arguments)
    figures = measure(SEED)
    try:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = train_tokenizer(given.data, Path(folder), seed=SEED)
        figures |= tokens_per_forward("synthetic", synthetic_sessions(given.data), tokenizer)
        figures |= tokens_per_forward("airline", airline_sessions(given.data), tokenizer)
    except DataMissing as error:
        return report_missing("speculation", error, bars(figures), as_json=given.json)
    for way in ("forced", "session"):
        figures[f"tokens_per_forward_{way}"] = figures[f"synthetic_tokens_per_forward_{way}"]
    figures["forced_wrong"] = figures["synthetic_forced_wrong"] + figures["airline_forced_wrong"]
    return report("speculation", figures, bars(figures), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
