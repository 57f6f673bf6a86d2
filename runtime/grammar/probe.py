"""A grammar nobody has seen before is first tried in a process that may be killed.

Compiling a client's schema can take any amount of time and memory, and inside a library
call neither can be bounded. So a child (``runtime.grammar.probe_process``) compiles it,
draws the first mask and looks for a legal output; if that takes more CPU time than the limits
allow the child is killed and the schema refused. On a machine that gives the child no time the
check is given up, which says nothing about the schema. What has passed is compiled again where it
is needed, at known cost.

A check that nobody waits for any more is withdrawn while it waits for a child; one that has begun
goes on, since its verdict is worth keeping and a killed child is not. Who gets a child next is
for ``Places`` to say: the place of a check that cost its child is free when the next child is
ready.

A start waits for one child. The others are started when a check lasts, or where there was none
some time later: until then others wait for that check, and for what is left of their start.

Always true: a check ends within the limits whatever the schema, other checks go on, and a
schema is tried by one child at a time however many of a tenant ask for it. With all children there
nobody waits for one to start but the tenant whose check ended the last one.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from runtime.grammar.probe_child import ProbeChild, ProbeError, ProbeLimits
from runtime.grammar.refusal import GrammarRefused
from tools_api.grammar import GrammarSpec

log = logging.getLogger(__name__)

_MAX_PASSED = 16_384
_MAX_REFUSED = 1024
_PASSED_BYTES, _REFUSED_BYTES = 160, 1024
_LONG_SHARE = 0.25
"""A check that takes this share of its limit is one that others should not wait for."""


class Places(Protocol):
    """The queue of tenants that wait for a child."""

    def place(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """Waits for a child, and holds it inside the block."""

    def judge(self, tenant: str, *, took_long: bool) -> None:
        """Note what the tenant's last check was like."""


class _ByArrival:
    """Places without tenants: the children's own queue decides."""

    def place(self, tenant: str) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    def judge(self, tenant: str, *, took_long: bool) -> None: ...


@dataclass(slots=True, kw_only=True, eq=False)
class _Attempt:
    """One try of a grammar, and how many wait for it."""

    task: "asyncio.Task[GrammarRefused | None]"
    callers: int = 0


class GrammarProbe:
    """Checks grammars in child processes. All calls from one event loop."""

    def __init__(
        self,
        tokenizer_folder: Path,
        *,
        vocab_size: int | None = None,
        model_type: str | None = None,
        chat_format: str | None = None,
        limits: ProbeLimits | None = None,
        num_processes: int = 2,
        places: Places | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            tokenizer_folder, vocab_size, model_type: as for ``Tokenizer.load``.
            chat_format: as for ``runtime.chat_formats.format_of``.
            num_processes: children; a hostile grammar blocks one of them until killed.
            places: as many as children, for tenants in turn. None: by arrival.
        """
        self._limits = limits or ProbeLimits()
        arguments = [str(tokenizer_folder), str(self._limits.memory_bytes)]
        arguments += ["--vocab-size", str(vocab_size)] if vocab_size is not None else []
        arguments += ["--model-type", model_type] if model_type is not None else []
        arguments += ["--chat-format", chat_format] if chat_format is not None else []
        self._children = [ProbeChild(arguments, self._limits) for _ in range(num_processes)]
        self._needed = asyncio.Event()
        """Set once all children are to be started."""
        self._idle: asyncio.LifoQueue[ProbeChild] = asyncio.LifoQueue()
        self._places = places or _ByArrival()
        self._clock = clock
        self._passed: OrderedDict[bytes, None] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, GrammarRefused]] = OrderedDict()
        self._running: dict[tuple[str, bytes], _Attempt] = {}
        self._begun: set[tuple[str, bytes]] = set()
        self._renewals: set[asyncio.Task[None]] = set()

    @property
    def num_bytes(self) -> int:
        """Memory of the verdicts that are remembered, roughly."""
        return len(self._passed) * _PASSED_BYTES + len(self._refused) * _REFUSED_BYTES

    async def start(self) -> None:
        """Start a child and wait until it is ready; the others are started later.

        Raises:
            ProbeError: the child did not come up.
        """
        first, *others = self._children
        await first.start()
        self._idle.put_nowait(first)
        if others:
            self._begin(self._start_later(others))

    def start_others(self) -> None:
        """Have all children there soon: it is not known what the one at work will cost."""
        self._needed.set()

    async def _start_later(self, others: "list[ProbeChild]") -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._needed.wait(), self._limits.others_after_s)
        await asyncio.gather(*(self._start_other(child) for child in others))

    async def _start_other(self, child: "ProbeChild") -> None:
        """One that does not come up now is tried again by the check that gets it."""
        try:
            await child.start()
        except ProbeError as error:
            log.warning("grammar probe not started reason=%s", error)
        self._idle.put_nowait(child)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)

    async def check(self, spec: GrammarSpec, tenant: str = "") -> GrammarRefused | None:
        """The reason against a grammar, or None. Callers of a tenant with the same grammar share
        one try, and a caller that is cancelled does not cancel it for the others.

        Raises:
            ProbeError: the child is gone and cannot be replaced.
        """
        key = _digest(spec)
        if key in self._passed:
            self._passed.move_to_end(key)
            return None
        if key in self._refused and self._refused[key][0] > self._clock():
            return self._refused[key][1]
        attempt = self._attempt(spec, tenant, key)
        attempt.callers += 1
        try:
            return await asyncio.shield(attempt.task)
        finally:
            attempt.callers -= 1
            if not attempt.callers and (tenant, key) not in self._begun:
                attempt.task.cancel()
                self._forget(tenant, key, attempt)

    def _attempt(self, spec: GrammarSpec, tenant: str, key: bytes) -> _Attempt:
        attempt = self._running.get((tenant, key))
        if attempt is None:
            attempt = _Attempt(task=asyncio.create_task(self._try(spec, tenant, key)))
            self._running[tenant, key] = attempt
            attempt.task.add_done_callback(lambda _: self._forget(tenant, key, attempt))
        return attempt

    def _forget(self, tenant: str, key: bytes, attempt: _Attempt) -> None:
        if self._running.get((tenant, key)) is attempt:
            del self._running[tenant, key]

    async def stop(self) -> None:
        """Kill the children; checks still open are cancelled."""
        running = [*(attempt.task for attempt in self._running.values()), *self._renewals]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(child.kill() for child in self._children))

    async def _try(self, spec: GrammarSpec, tenant: str, key: bytes) -> GrammarRefused | None:
        async with AsyncExitStack() as place:
            await place.enter_async_context(self._places.place(tenant))
            child = await self._idle.get()
            self._begun.add((tenant, key))
            began = self._clock()
            lasts = asyncio.get_running_loop().call_later(self._limits.lasts_s, self.start_others)
            try:
                refused = await child.check(spec)
            finally:
                lasts.cancel()
                self._begun.discard((tenant, key))
                took = self._clock() - began
                self._places.judge(tenant, took_long=took > _LONG_SHARE * self._limits.seconds)
                if child.is_ready:
                    self._idle.put_nowait(child)
                else:
                    self.start_others()
                    self._begin(self._renew(child, place.pop_all()))
        return self._remember(key, refused)

    async def _renew(self, child: "ProbeChild", place: AsyncExitStack) -> None:
        """The place is free when its child can be used again."""
        async with place:
            await child.until_ready()
            self._idle.put_nowait(child)

    def _remember(self, key: bytes, refused: GrammarRefused | None) -> GrammarRefused | None:
        if refused is None:
            self._passed[key] = None
            if len(self._passed) > _MAX_PASSED:
                self._passed.popitem(last=False)
        else:
            self._refused[key] = (self._clock() + self._limits.refusal_life_s, refused)
            self._refused.move_to_end(key)
            if len(self._refused) > _MAX_REFUSED:
                self._refused.popitem(last=False)
        return refused


def _digest(spec: GrammarSpec) -> bytes:
    return hashlib.blake2b(orjson.dumps(asdict(spec)), digest_size=16).digest()
