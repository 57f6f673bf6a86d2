"""The process that reads: the same answers as here, and a fresh one where it is lost."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from sessions.turns.reading import error_fields
from sessions.wire import read_process
from sessions.wire.http_dialects import DIALECTS, Body, read_body
from sessions.wire.read_process import NICENESS, NoText, ReadConfig, ReaderLost, ReadProcess
from tests.support import mutations
from tests.support.reading import carried
from tests.support.sessions_rig import TOKENIZER
from tools_api.errors import ApiError
from tools_api.limits import DEFAULT_LIMITS
from tools_api.requests import CreateRequest

CONFIG = ReadConfig(
    limits=DEFAULT_LIMITS,
    models=frozenset({"default"}),
    model_type="qwen3",
    specials=frozenset(TOKENIZER.specials),
)
CHAT = next(each for each in DIALECTS if each.path == "/v1/chat/completions")
MESSAGES = next(each for each in DIALECTS if each.path == "/v1/messages")


def frame(**fields: Any) -> bytes:
    return orjson.dumps({"type": "response.create", **fields})


def play(
    scenario: Callable[[ReadProcess], Coroutine[Any, Any, None]], config: ReadConfig = CONFIG
) -> None:
    async def main() -> None:
        reader = ReadProcess(config)
        await reader.start()
        try:
            async with asyncio.timeout(30):
                await scenario(reader)
        finally:
            await reader.stop()

    asyncio.run(main())


def test_frames_and_bodies_are_read_as_here() -> None:
    items = [{"role": "user", "content": "x" * 50}] * 500
    bodies = [
        Body(served=CHAT, data=orjson.dumps({"messages": items, "stream": True}), session="s"),
        Body(served=CHAT, data=orjson.dumps({"messages": items, "n": 2})),
        Body(served=MESSAGES, data=orjson.dumps({"messages": items, "max_tokens": 5})),
        Body(served=MESSAGES, data=orjson.dumps({"messages": items}), counted=True),
    ]

    async def scenario(reader: ReadProcess) -> None:
        context = CONFIG.context()
        for body in bodies:
            found, here = (await reader.read(body)).body, carried(read_body(body, context), context)
            assert found.style == here.style
            assert (found.style is None) == isinstance(here.read.content, ApiError)
            if isinstance(here.read.content, ApiError):
                assert isinstance(found.read.content, ApiError)
                assert error_fields(found.read.content) == error_fields(here.read.content)
            else:
                assert found.read == here.read
        outcome = await reader.read(frame(input=items))
        assert isinstance(outcome.body.read.content, CreateRequest)
        assert len(outcome.body.read.content.input) == 500
        assert outcome.cpu_s > 0
        with pytest.raises(NoText):
            await reader.read(b"\xff")
        refused = (await reader.read(frame(input=items, model="x"))).body.read.content
        assert isinstance(refused, ApiError)
        assert refused.code == "model_not_found"

    play(scenario)


def test_where_names_are_looked_at_later_any_is_read() -> None:
    async def scenario(reader: ReadProcess) -> None:
        items = [{"role": "user", "content": "x" * 50}] * 500
        found = (await reader.read(frame(input=items, model="x"))).body.read.content
        assert isinstance(found, CreateRequest)
        assert found.model == "x"

    play(scenario, replace(CONFIG, models=None))


def test_it_stands_behind_the_server_where_cores_are_few() -> None:
    async def scenario(reader: ReadProcess) -> None:
        assert reader.process_id is not None
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, reader.process_id) == min(19, ours + NICENESS)

    play(scenario)


def test_a_reader_that_dies_or_hangs_is_lost_with_its_job_alone() -> None:
    async def scenario(reader: ReadProcess) -> None:
        await reader.read(frame(input="a"))
        assert reader.process_id is not None
        first = reader.process_id
        os.kill(first, signal.SIGKILL)
        with contextlib.suppress(ReaderLost):  # its death may be known before the next job
            await reader.read(frame(input="b"))
        await reader.read(frame(input="c"))
        assert reader.process_id not in (None, first)

        hung = ReadProcess(CONFIG, limit_s=0.2)
        await hung.start()
        assert hung.process_id is not None
        os.kill(hung.process_id, signal.SIGSTOP)
        with pytest.raises(ReaderLost, match="Timeout"):
            await hung.read(frame(input="d"))
        assert hung.process_id is None

    play(scenario)


class Scripted(ReadProcess):
    """A child that says what it is told to say."""

    def __init__(self, said: Iterable[tuple[int, bytes]]) -> None:
        super().__init__(CONFIG)
        self._said = iter(said)

    async def start(self) -> None:
        self._writer = Mock()

    async def _receive(self) -> tuple[int, bytes]:
        try:
            return next(self._said)
        except StopIteration:
            raise EOFError from None


def scripts() -> list[list[tuple[int, bytes]]]:
    """What the child says of frames and bodies of every kind, kind and data of each piece."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "name": "f", "schema": schema}
    tool = {"type": "function", "name": "g", "parameters": schema}
    jobs: list[bytes | Body] = [
        frame(input="a", text={"format": form}, tools=[tool], stream_id="s"),
        frame(input="a", model="x"),
        orjson.dumps({"type": "response.cancel", "response_id": "r"}),
        Body(served=CHAT, data=orjson.dumps({"messages": [{"role": "user", "content": "x"}]})),
    ]
    found = []
    for job in jobs:
        (kind, told), (_, data) = pairs = [
            (part[4], part[9:]) for part in _whole(read_process.job_frames(job))
        ]
        assert len(pairs) == 2
        parts = read_process.answer_frames(kind, told, data, CONFIG.context())
        said = [(part[4], part[9:]) for part in parts]
        end = (read_process.END, orjson.dumps({"cpu_s": 0.5, "frames": len(said)}))
        found.append([*said, end])
    return found


def _whole(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The frames of a job: the last one's bytes come apart from its prefix."""
    first, prefix, data = parts
    yield first
    yield prefix + data


@pytest.mark.parametrize("script", scripts(), ids=["frame", "refused", "cancel", "body"])
def test_a_child_that_says_something_else_is_lost_and_harms_nobody(
    script: list[tuple[int, bytes]],
) -> None:
    """Each value in each piece replaced by each of eleven others; pieces left out, doubled, cut."""

    async def read(said: Iterable[tuple[int, bytes]]) -> bool:
        try:
            outcome = await Scripted(said).read(b"x")
        except (ReaderLost, NoText):
            return False
        assert 0.0 <= outcome.cpu_s < float("inf")
        return True

    async def scenario() -> None:
        assert await read(script)
        lost = tried = 0
        for at, (kind, data) in enumerate(script):
            before, after = script[:at], script[at + 1 :]
            for others in ((), ((kind, data[:-1]),), ((200, data),), ((kind, b"[]"),)):
                lost, tried = lost + (not await read([*before, *others, *after])), tried + 1
            assert not await read([*before, *after])
            assert kind == read_process.END or not await read([*before, (kind, data), *script[at:]])
            value = orjson.loads(data)
            for place in mutations.places(value):
                for wrong in mutations.WRONG:
                    mutant = orjson.dumps(mutations.replaced(value, place, wrong))
                    lost += not await read([*before, (kind, mutant), *after])
                    tried += 1
        assert lost > tried // 10

    asyncio.run(scenario())


@pytest.mark.parametrize("seconds", ["-1.0", "null", "1e999", '"1"', "true", "2"])
def test_cpu_time_that_cannot_be_is_not_counted(seconds: str) -> None:
    *pieces, _ = scripts()[0]
    frames = str(len(pieces)).encode()
    told = (read_process.END, b'{"cpu_s":' + seconds.encode() + b',"frames":' + frames + b"}")
    with pytest.raises(ReaderLost):
        asyncio.run(Scripted([*pieces, told]).read(b"x"))


def test_it_ends_with_its_socket() -> None:
    async def scenario(reader: ReadProcess) -> None:
        await reader.read(frame(input="a"))
        assert reader.process_id is not None
        os.kill(reader.process_id, signal.SIGTERM)
        await reader.read(frame(input="b"))

    play(scenario)
