"""A whole served front end in this process, over real sockets, with an engine that is held.

``Stage`` serves as the command does: a journal in a file, a probe for grammars and a process
that reads large requests; the engine runs the shipped model in float64 and says nothing before
it is let. Its clock stands, so that nothing it decides depends on how fast a machine is.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.grammar.probe import GrammarProbe
from runtime.messages import CancelRequest, EngineInfo, EngineMessage, GenerationRequest, StepOutput
from runtime.model.runner import ModelRunner, load_runner
from runtime.process.engine_process import EngineDied
from runtime.process.loading import assemble
from runtime.tokenizer import Tokenizer
from sessions.command import serve as command
from sessions.command.options import ServeOptions, read_serve_options
from sessions.command.serve_settings import SERVE_SETTINGS
from sessions.command.settings import resolve
from sessions.wire.read_process import ReadProcess
from tests.support.clock import FakeClock

PATIENCE_S = 60.0
PRICES = "input=3,cached=0.3,output=15"
ENGINE = EngineConfig(
    model="default",
    dtype="float64",
    device="cpu",
    threads=1,
    num_blocks=256,
    max_draft_tokens=0,
    startup_profile_ms=0,
    startup_profile_folder="",
)


class HeldEngine:
    """An engine in this process that takes as many steps with tokens as it is let."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._engine: Engine | None = None
        self._arrived = asyncio.Event()
        self._may = asyncio.Event()
        self._may.set()
        self._left: int | None = None
        self._dying = False
        self.num_requests = 0
        """That were ever sent."""
        self.num_cancelled = 0
        """Of them, those that it was told to give up."""

    def hold(self, after: int = 0) -> None:
        """Stop after so many steps with tokens."""
        self._left = after
        if not after:
            self._may.clear()

    def go_on(self) -> None:
        """From now on step as ever."""
        self._left = None
        self._may.set()

    @property
    def stands(self) -> bool:
        """It was told to stop and has."""
        return not self._may.is_set()

    def die(self) -> None:
        """Be gone, until it is started again."""
        self._dying = True
        self._arrived.set()
        self._may.set()

    async def start(self) -> EngineInfo:
        self._engine = self._make()
        return self._engine.info

    def send(self, messages: list[EngineMessage]) -> None:
        assert self._engine is not None
        self.num_requests += sum(isinstance(each, GenerationRequest) for each in messages)
        self.num_cancelled += sum(isinstance(each, CancelRequest) for each in messages)
        self._engine.submit(messages)
        self._arrived.set()

    async def receive(self) -> StepOutput:
        assert self._engine is not None
        while True:
            await self._may.wait()
            if not self._engine.has_work and not self._dying:
                self._arrived.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), self._engine.idle_s)
            if self._dying:
                self._dying = False
                raise EngineDied("told to")
            if not self._may.is_set():
                continue
            await asyncio.sleep(self._engine.pause_s)
            output = self._engine.step()
            if output is not None:
                self._count(output)
                return output

    def _count(self, output: StepOutput) -> None:
        if self._left is not None and any(len(each.new_tokens) for each in output.outputs):
            self._left -= 1
            if self._left <= 0:
                self._may.clear()

    async def restart(self) -> EngineInfo:
        await self.stop()
        self.go_on()
        return await self.start()

    async def stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None


class _Shared:
    """A helper process that outlives the servers that start and stop it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Stage:
    """Makes servers. The model and the helper processes are the same for all; the engine, its
    cache, and all that the front end knows are new in each. For one event loop."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._runner: ModelRunner | None = None
        self._tokenizer: Tokenizer | None = None
        self._helpers: list[Any] = []
        patch.setattr(command, "EngineProcess", self._engine)
        patch.setattr(command, "place", self._place)
        self.engine: HeldEngine | None = None
        self.address = ""

    async def open(self) -> None:
        """Load the model and start the helpers."""
        self._runner = load_runner(ENGINE)
        model = self._runner.model
        self._tokenizer = Tokenizer.load(
            model.tokenizer_folder,
            vocab_size=model.config.vocab_size,
            model_type=model.model_type,
        )
        for name, kind in (("GrammarProbe", GrammarProbe), ("ReadProcess", ReadProcess)):
            self._patch.setattr(command, name, self._helper(name, kind))

    async def close(self) -> None:
        for helper in self._helpers:
            await helper.stop()

    def _helper(self, name: str, kind: Any) -> Callable[..., Any]:
        """``kind``, made at its first use and then handed out again."""
        stage, made = self, []

        class Lasting(_Shared):
            def __init__(self, *given: Any, **named: Any) -> None:
                if not made:
                    made.append(kind(*given, **named))
                super().__init__(made[0])

            async def start(self) -> None:
                if made[0] not in stage._helpers:
                    await made[0].start()
                    stage._helpers.append(made[0])

        return Lasting

    def _engine(self, *_: Any, **__: Any) -> HeldEngine:
        self.engine = HeldEngine(self._assembled)
        return self.engine

    def _assembled(self) -> Engine:
        assert self._runner is not None
        assert self._tokenizer is not None
        # A clock that stands: what a step costs is no reason to do anything otherwise.
        return assemble(ENGINE, self._runner, self._tokenizer, clock=FakeClock(1000.0))

    def _place(self, options: ServeOptions) -> socket.socket:
        bound = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{bound.getsockname()[1]}"
        return bound

    @contextlib.asynccontextmanager
    async def serving(self, *words: str, journal: str) -> AsyncIterator["Served"]:
        """A server until the block ends."""
        typed = {"model": ENGINE.model, "price": PRICES, "journal": journal}
        typed |= dict(zip(words[::2], words[1::2], strict=True))
        environment = {"HOME": os.environ.get("HOME", "/"), "XDG_CACHE_HOME": "/nonexistent"}
        values = resolve("serve", SERVE_SETTINGS, typed=typed, environment={})
        options = read_serve_options(values, environment)
        ready, stopping = asyncio.Event(), asyncio.Event()
        task = asyncio.get_running_loop().create_task(command.serve_until(options, ready, stopping))
        waiting = asyncio.get_running_loop().create_task(ready.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            task.result()
        assert self.engine is not None
        served = Served(self.address, self.engine, stopping, task)
        try:
            yield served
        finally:
            self.engine.go_on()
            stopping.set()
            async with asyncio.timeout(PATIENCE_S):
                await task


class Served:
    """A server that runs."""

    def __init__(
        self,
        address: str,
        engine: HeldEngine,
        stopping: asyncio.Event,
        task: "asyncio.Task[None]",
    ) -> None:
        self.address = address
        self.engine = engine
        self._stopping = stopping
        self.task = task

    def drain(self) -> None:
        """Tell it to stop as a signal does."""
        self._stopping.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it has got so far."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.002)

    async def stands(self) -> None:
        """Until the engine has taken the steps that it was let."""
        await self.until(lambda: self.engine.stands)

    async def asked(self, requests: int) -> None:
        """Until the engine was sent so many requests in all."""
        await self.until(lambda: self.engine.num_requests >= requests)

    async def gave_up(self, requests: int) -> None:
        """Until the engine was told to give up so many requests in all."""
        await self.until(lambda: self.engine.num_cancelled >= requests)
