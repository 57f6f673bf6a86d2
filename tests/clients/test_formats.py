"""Tool loops of published clients with models that write calls in each kind of way: as JSON, as raw
text between tags, on channels. The weights are random, so calls are asked for.

A client plays three questions, each a loop of three turns, over every API that it has.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepwarm.demo.child_server import ChildServer, child_server
from tests.clients.playing import made, run
from tests.clients.table import CLIENTS
from tests.support.chat_models import FORMATS, format_of
from tests.support.judged_folders import template_folder

WAYS = {"openai": ("http", "websocket", "chat"), "anthropic": ("messages",)}
OPTIONS = ("--kv-cache-mib", "64", "--threads", "1", "--startup-profile-ms", "0")


@pytest.fixture(
    scope="module",
    params=["qwen3", "qwen3-coder", "harmony", "deepseek-v3.1", "kimi-k2", "gemma4", "minimax-m3"],
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChildServer]:
    row, folder = FORMATS[request.param], tmp_path_factory.mktemp("served")
    ends = format_of(row).end_of_turn
    model = template_folder(folder / "m", None, specials=row["tokens"], ends=ends)
    words = ["--model", str(model), "--chat-format", row.get("name", row["format"]), *OPTIONS]
    with child_server(words, log=folder / "log") as server:
        yield server
        assert "Traceback" not in (folder / "log").read_text()


def is_a_call(name: str, arguments: Any) -> bool:
    if name == "get_price":
        return set(arguments) == {"product"} and arguments["product"] in ("lamp", "desk", "chair")
    numbers = arguments.values()
    return set(arguments) == {"a", "b"} and all(0 <= number <= 9999 for number in numbers)


@pytest.mark.parametrize(
    ("package", "way"), [(package, way) for package, ways in WAYS.items() for way in ways]
)
def test_a_loop_of_calls_goes_on_turn_after_turn(
    package: str, way: str, served: ChildServer
) -> None:
    where = made(next(client for client in CLIENTS if client.package == package))
    script: Path = where.scripts / f"{package}_formats.py"
    seen = json.loads(run(where, script, served.url, way).splitlines()[-1])
    turns = seen["turns"]
    assert len(turns) == 9
    for place, turn in enumerate(turns):
        if place % 3 == 2:
            assert turn["calls"] == []
            continue
        assert turn["calls"]
        assert all(is_a_call(*call) for call in turn["calls"])
        assert place % 3 == 0 or turn["calls"][0][0] == "multiply"
    assert any(turn["text"] for turn in turns[2::3])
    assert min(seen["cached"][1:]) > 0
