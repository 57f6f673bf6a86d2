"""The engine without its process, behind the same interface: what the child is compared with."""

import asyncio
import contextlib

from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.messages import EngineInfo, EngineMessage, StepOutput
from runtime.process.loading import load_engine


class InlineEngine:
    """The engine in this process: a step runs inside ``receive``, blocking the loop."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._engine: Engine | None = None
        self._arrived = asyncio.Event()

    async def start(self) -> EngineInfo:
        self._engine = load_engine(self._config)
        return self._engine.info

    def send(self, messages: list[EngineMessage]) -> None:
        assert self._engine is not None
        self._engine.submit(messages)
        self._arrived.set()

    async def receive(self) -> StepOutput:
        assert self._engine is not None
        while True:
            if not self._engine.has_work:
                self._arrived.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), self._engine.idle_s)
            await asyncio.sleep(self._engine.pause_s)
            output = self._engine.step()
            if output is not None:
                return output

    async def restart(self) -> EngineInfo:
        await self.stop()
        return await self.start()

    async def stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None
