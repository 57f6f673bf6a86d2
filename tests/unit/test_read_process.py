"""The process that reads: the same answers as here, and a fresh one where it is lost."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
import pytest

from sessions.turns.reading import error_fields
from sessions.wire.http_dialects import DIALECTS, Body, read_body
from sessions.wire.read_process import NoText, ReadConfig, ReaderLost, ReadProcess
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


def play(scenario: Callable[[ReadProcess], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        reader = ReadProcess(CONFIG)
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


def test_it_ends_with_its_socket() -> None:
    async def scenario(reader: ReadProcess) -> None:
        await reader.read(frame(input="a"))
        assert reader.process_id is not None
        os.kill(reader.process_id, signal.SIGTERM)
        await reader.read(frame(input="b"))

    play(scenario)
