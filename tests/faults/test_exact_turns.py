"""Whatever agents do and whoever is killed, a served model's tokens are those of plain runs.

Small models of the kinds that agents run, over real sockets, with a journal, memory and a disk
below a device that has room for a context or two. Agents play at once, forked, steered, cancelled,
cut and recast; the engine is killed, and the server. Then each turn that the engine was asked for
is played again alone, in float64, and compared token by token.

KEEPWARM_LIVES sets how many servers are killed for each model, KEEPWARM_LIVES_TURNS how many turns
end at each, KEEPWARM_LIVES_SEED which. KEEPWARM_LIVES_MODEL plays another model: a preset's name,
or a folder.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest

from keepwarm.demo.child_server import ChildServer, child_server
from runtime.model.sources import find_source
from tests.support import forked_engine
from tests.support.loop_agents import LoopAgent
from tests.support.replay import PlainRuns, compare, recorded

LIVES = int(os.environ.get("KEEPWARM_LIVES", "2"))
TURNS = int(os.environ.get("KEEPWARM_LIVES_TURNS", "12"))
SEED = int(os.environ.get("KEEPWARM_LIVES_SEED", "1"))
_NAMED = os.environ.get("KEEPWARM_LIVES_MODEL")
ALWAYS = ("random:qwen3.5-tiny", "random:nemotron-h-tiny")
OTHERS = (
    "random:granite-hybrid-tiny",
    "random:lfm2-tiny",
    "random:gpt-oss-tiny",
    "random:gemma3-tiny",
    "random:gemma4-tiny",
    "random:minimax-m2-tiny",
    "random:glm4-moe-tiny",
)
_RARER = [pytest.param(model, marks=pytest.mark.slow) for model in OTHERS]
MODELS = [_NAMED] if _NAMED else [*ALWAYS, *_RARER]
WINDOW = 1536
AGENTS = 4
_PATIENCE_S = 300.0


def options_of(model: str, draw: random.Random, folder: Path) -> list[str]:
    """Few blocks, few states, tiers of random sizes, small steps."""
    running, size = draw.choice([2, 3, 4]), draw.choice([4, 16])
    chosen: dict[str, object] = {
        "model": model,
        "dtype": "float64",
        "threads": 1,
        "max-context-tokens": WINDOW,
        "block-size": size,
        "num-blocks": int(WINDOW / size * draw.choice([1.1, 1.5, 2.5])) + 6,
        "max-running": running,
        "max-batch-tokens": draw.choice([33, 200, 2048]),
        "max-draft-tokens": draw.choice([0, 8, 16]),
        "output-reserve-percent": 0,
        "session-context-percent": 1000,
        "startup-profile-ms": 0,
        "startup-profile-folder": "",
        "journal": folder / "journal",
        "drain-seconds": 5,
        "host-kv-mib": draw.choice([1, 4]),
        "disk-kv-mib": draw.choice([2, 8]),
        "disk-kv-folder": folder / "kv",
    }
    if find_source(model).config.recurrent:
        chosen["state-slots"] = running + draw.choice([0, 1, 3, 8])
        chosen["host-state-mib"] = draw.choice([0, 1, 2])
    return [word for name, value in chosen.items() for word in (f"--{name}", str(value))]


def engines(server: ChildServer) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if child.name() == forked_engine.NAME]


async def live(
    server: ChildServer, agents: list[LoopAgent], draw: random.Random, counts: Counter[str]
) -> None:
    """Agents play until the server is killed; its engine is before that."""
    until = asyncio.Event()
    playing = [asyncio.create_task(agent.play(server.url, until)) for agent in agents]
    for part in range(2):
        enough = counts["ended"] + TURNS // 2
        async with asyncio.timeout(_PATIENCE_S):
            while counts["ended"] < enough:
                for each in playing:
                    assert not each.done() or each.result(), "an agent has stopped"
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5 * draw.random())
        if not part:
            for engine in engines(server):
                engine.kill()
    os.kill(server.process.pid, signal.SIGKILL)
    until.set()
    await asyncio.gather(*playing)


@pytest.mark.timeout(600 * LIVES)
@pytest.mark.parametrize("model", MODELS)
def test_turns_of_a_server_that_is_killed_are_those_of_plain_runs(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, counts = random.Random(f"{model}/{SEED}"), Counter[str]()
    options = options_of(model, draw, tmp_path)
    print(*options)
    monkeypatch.setenv("RECORD_TURNS_TO", str(tmp_path / "turns"))
    monkeypatch.setenv("RECORD_FORKED", "1")
    agents = [LoopAgent(f"a{n}", SEED, counts, window=WINDOW) for n in range(AGENTS)]
    for number in range(LIVES):
        log = tmp_path / f"log{number}"
        with child_server(
            options, log=log, module="tests.support.recorded_server", start_timeout_s=_PATIENCE_S
        ) as server:
            asyncio.run(live(server, agents, draw, counts))
        assert "Traceback" not in log.read_text()
    turns = recorded(tmp_path / "turns")
    plain = PlainRuns(model, dtype="float64", max_context_tokens=WINDOW)
    seen = compare(turns, plain)
    print(dict(counts), dict(seen))
    assert seen["turns"] >= LIVES * TURNS // 2
    assert seen["cached"] > seen["turns"] // 3
    assert seen["finish engine lost"] + seen["finish None"]
    last = next(turn for turn in reversed(turns) if turn.tokens)
    last.tokens[-1] ^= 1
    with pytest.raises(AssertionError, match=f"token {len(last.tokens) - 1}: "):
        compare([last], plain)
