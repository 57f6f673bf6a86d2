"""The transport benchmark compares equal work, and answers with all its bars."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import uvloop
from websockets.frames import Frame, Opcode

from benchmarks.transport import (
    BARS,
    Load,
    Measured,
    bare_server,
    cpu_s,
    front_end,
    idle_mib,
    measure_bare,
    measure_front_end,
    resident_mib,
)
from benchmarks.transport_clients import Kind, WrongAnswer, ended, json_ended, texts_of
from benchmarks.transport_engine import Script
from runtime.messages import CancelRequest, FinishReason, GenerationRequest, SamplingParams

ROOT = Path(__file__).parents[2]
SMALL = ["--few", "2", "--many", "3", "--idle", "4", "--tokens", "12", "--tokens-of-many", "12"]
TOKENS = 12
EVENTS = 4 + (TOKENS - 1) + 4
"""Created, in progress, item, part; a delta for each token but the end; and four that close."""


def request(name: str, tokens: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        branch_id=name,
        tenant="t",
        base_branch_id=None,
        base_offset=0,
        new_tokens=np.arange(5, dtype=np.int32),
        max_new_tokens=tokens,
        sampling=SamplingParams(),
    )


def frame(text: str) -> bytes:
    return Frame(Opcode.TEXT, text.encode()).serialize(mask=False)


@pytest.mark.slow
class TestWithSmallNumbers:
    def test_answers_with_every_bar(self) -> None:
        command = [sys.executable, "-m", "benchmarks.transport", "--json", *SMALL]
        command += ["--rounds", "1", "--turns", "1"]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        answer = json.loads(done.stdout)
        assert {bar["name"]: (bar["op"], bar["bar"]) for bar in answer["bars"]} == {
            "ws_cost_per_event_64": ("<=", 4.0),
            "sse_cost_per_event_64": ("<=", 5.0),
            "ws_cost_per_event_1000": ("<=", 5.0),
            "idle_1000_mib": ("<=", 40.0),
            "http_turn_overhead": ("<=", 1.15),
        }
        assert [bar["name"] for bar in answer["bars"]] == list(BARS)
        costs = [bar for bar in answer["bars"] if "cost" in bar["name"]]
        assert all(bar["value"] > 0 for bar in costs)
        figures = answer["figures"]
        assert figures["turn_ws_ms"] > 0
        assert figures["ws_event_us_64"] > 0
        assert figures["ws_bare_event_us_64"] > 0

    @pytest.mark.parametrize("kind", ["ws", "sse"])
    def test_both_servers_send_the_same_bytes(self, kind: Kind, tmp_path: Path) -> None:
        load = Load(kind=kind, connections=2, tokens=TOKENS)

        async def measure() -> tuple[Measured, Measured]:
            with front_end(tmp_path) as server:
                ours = await measure_front_end(server, load)
                await idle_mib(server, kind, 2)
            with bare_server(tmp_path, ours.texts) as bare:
                return ours, await measure_bare(bare, load, ours.texts)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            ours, bare = runner.run(measure())
        assert ours.texts == bare.texts
        assert [len(texts) for texts in ours.texts] == [EVENTS, EVENTS]
        begins = b"{" if kind == "ws" else b"event: "
        assert all(text.startswith(begins) for texts in ours.texts for text in texts)
        assert ours.texts[0][-1] != ours.texts[1][-1]
        assert ours.event_us > 0
        assert bare.event_us > 0

    def test_other_bytes_are_noticed(self, tmp_path: Path) -> None:
        load = Load(kind="ws", connections=1, tokens=TOKENS)

        async def measure() -> None:
            with front_end(tmp_path) as server:
                ours = await measure_front_end(server, load)
            changed = [[*ours.texts[0]]]
            changed[0][5] = changed[0][5].replace(b"response.", b"Response.", 1)
            with bare_server(tmp_path, changed) as bare:
                await measure_bare(bare, load, ours.texts)

        with (
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            pytest.raises(WrongAnswer, match="same bytes"),
        ):
            runner.run(measure())


class TestScript:
    def test_gives_each_open_turn_a_token_in_every_step(self) -> None:
        script = Script([7, 8], end=2)
        script.submit([request("a", 3), request("b", 2)])
        steps = [script.step() for _ in range(3)]
        said = [[(o.request_id, o.new_tokens.tolist()) for o in step.outputs] for step in steps]
        assert said == [[("a", [7]), ("b", [7])], [("a", [8]), ("b", [2])], [("a", [2])]]
        assert [o.start is not None for o in steps[0].outputs] == [True, True]
        assert [o.start is not None for o in steps[1].outputs] == [False, False]
        assert steps[1].outputs[1].finish is FinishReason.STOP
        assert steps[2].outputs[0].finish is FinishReason.STOP
        assert script.num_open == 0

    def test_drops_what_is_cancelled(self) -> None:
        script = Script([7], end=2)
        script.submit([request("a", 3), CancelRequest(request_id="a")])
        assert script.num_open == 0
        assert script.step().outputs == ()


class TestReading:
    @pytest.mark.parametrize("length", [0, 125, 126, 65535, 65536])
    def test_texts_of_frames(self, length: int) -> None:
        texts = ["x" * length, "y"]
        data = b"".join(map(frame, texts))
        assert texts_of("ws", data) == [text.encode() for text in texts]
        assert texts_of("ws", data[:-1]) == [texts[0].encode()]

    def test_pings_are_no_texts(self) -> None:
        ping = Frame(Opcode.PING, b"").serialize(mask=False)
        assert texts_of("ws", ping + frame("a") + ping) == [b"a"]

    def test_events_of_chunks(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b"d\r\nevent: a\n\neve\r\n8\r\nnt: bb\n\n\r\n0\r\n\r\n"
        assert texts_of("sse", head + body) == [b"event: a\n\n", b"event: bb\n\n"]

    def test_the_end_is_the_whole_last_event(self) -> None:
        last = frame('{"type":"response.completed","response":{}}')
        whole = ended("ws")
        assert not whole(bytearray(frame('{"type":"response.created"}')))
        assert not whole(bytearray(last[:-1]))
        assert whole(bytearray(last))

    def test_a_json_answer_ends_with_its_length(self) -> None:
        answer = bytearray(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        assert json_ended(answer)
        assert not json_ended(answer[:-1])
        assert not json_ended(bytearray(b"HTTP/1.1 200 OK\r\n"))


def test_clock_and_memory_are_those_of_the_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            mine, its = cpu_s(other.pid), cpu_s(other.pid)
            assert 0 <= mine <= its < 1.0
            assert 0 < resident_mib(other.pid) < 64
        finally:
            other.kill()
