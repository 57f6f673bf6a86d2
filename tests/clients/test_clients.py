"""Clients as they are published, each in an environment of its own, against ``keepwarm serve``
with the default model. ``make test-clients`` runs this.

A client's script runs once and says what it saw; the tests below judge it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from keepwarm.demo.child_server import ChildServer
from tests.clients.documented import Example, examples
from tests.clients.playing import made, run
from tests.clients.table import CAPABILITIES, CLIENTS, Client


@dataclass(frozen=True, kw_only=True)
class Seen:
    client: Client
    report: dict[str, Any]


@pytest.fixture(
    scope="module", params=CLIENTS, ids=[f"{each.script}-{each.way}" for each in CLIENTS]
)
def seen(request: pytest.FixtureRequest, server: ChildServer) -> Seen:
    """What the client's script printed."""
    client: Client = request.param
    where = made(client)
    printed = run(where, where.scripts / client.script, server.url, client.way)
    report = json.loads(printed.splitlines()[-1])
    assert set(report) == set(CAPABILITIES)
    return Seen(client=client, report=report)


def test_a_tool_loop_of_three_turns_ends_with_the_right_answer(seen: Seen) -> None:
    loop = seen.report["tool_loop"]
    assert loop["calls"] == [["get_price", {"product": "desk"}], ["multiply", {"a": 180, "b": 3}]]
    assert loop["turns"] == 3
    assert "540" in loop["answer"]


def test_a_stream_comes_in_pieces_that_make_up_the_answer(seen: Seen) -> None:
    stream = seen.report["streaming"]
    assert stream["pieces"] >= 2
    assert stream["joined"] == stream["final"] != ""


def test_a_structured_answer_is_a_value_of_its_type(seen: Seen) -> None:
    offer = seen.report["structured"]
    assert set(offer) == {"product", "pieces", "express"}
    assert offer["product"] in {"lamp", "desk", "chair"}
    assert offer["pieces"] in {1, 2, 3}
    assert isinstance(offer["express"], bool)


def test_a_refusal_is_an_error_of_the_clients_own(seen: Seen) -> None:
    error = seen.report["error"]
    assert (error["class"], error.get("status")) == (seen.client.error, seen.client.status)
    if "code" in error:
        assert error["code"] in {"model_not_found", "not_found_error"}


def test_a_stream_that_is_stopped_ends_its_turn_and_the_server_goes_on(seen: Seen) -> None:
    cancel = seen.report["cancel"]
    if "cancel" not in seen.client.unsteady:
        assert cancel["cancelled"] == (0 if "cancel" in seen.client.lacks else 1)
    assert cancel["after"] != ""


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_the_lines_of_the_document_get_an_answer(
    example: Example, server: ChildServer, tmp_path: Path
) -> None:
    where = made(next(client for client in CLIENTS if client.heading == example.name))
    folder = where.scripts if example.is_for_node else tmp_path
    script = folder / ("documented.mjs" if example.is_for_node else "documented.py")
    script.write_text(example.at(server.url.removesuffix("/v1")), encoding="utf-8")
    assert run(where, script).strip()
