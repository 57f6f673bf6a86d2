"""Random schedules on the engine of a hybrid, and the plain model that says what must come out.

Nothing of what the schedules test is used to say that: each transcript is computed from its first
token on, in one pass of ``reference``.
"""

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.grammar.state import GrammarState
from runtime.messages import FinishReason, SamplingParams, TokenArray
from runtime.model.kv_pool import block_bytes
from runtime.model.presets import random_model_config
from runtime.model.state_pool import state_bytes
from runtime.offload.disk import slot_bytes
from runtime.offload.state_file import state_slot_bytes
from runtime.scheduling.draft import Draft
from runtime.scheduling.step_plan import Chunk
from tests.support.engine_driver import END_OF_TURN, EngineDriver
from tests.support.executors import Later
from tests.support.reference import ReferenceModel


class Truth:
    """Greedy continuations, computed from whole transcripts and remembered.

    Each pass of the plain model over a transcript says what follows each of its prefixes; what it
    read of them has been computed once, from the first token on.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self._model = ReferenceModel.random(model)
        self._next: dict[bytes, int] = {}

    def continued(self, prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        while len(tokens) < len(prompt) + count:
            tokens.append(self.after(tokens))
        return tokens[len(prompt) :]

    def after(self, tokens: list[int]) -> int:
        if self.known(tokens) is None:
            self._read(tokens)
        return self._next[_bytes(tokens)]

    def known(self, tokens: list[int]) -> int | None:
        return self._next.get(_bytes(tokens))

    def check(self, prompt: list[int], output: list[int]) -> None:
        """AssertionError where ``output`` is not how the plain model goes on."""
        whole = prompt + output
        if any(self.known(whole[:end]) is None for end in range(len(prompt), len(whole))):
            self._read(whole[:-1])
        for at in range(len(prompt), len(whole)):
            expected = self._next[_bytes(whole[:at])]
            assert whole[at] == expected, f"token {at} is {whole[at]}, {expected} expected"

    def forget(self) -> None:
        """Another schedule has other transcripts."""
        self._next.clear()

    def _read(self, tokens: list[int]) -> None:
        logits = self._model.logits(tokens).clone()
        logits[:, END_OF_TURN] = -float("inf")
        whole = _bytes(tokens)
        for at, token in enumerate(logits.argmax(-1).tolist(), start=1):
            self._next.setdefault(whole[: 4 * at], token)


def _bytes(tokens: list[int]) -> bytes:
    return np.array(tokens, dtype=np.int32).tobytes()


class Guesser:
    """Drafts of which any number is right."""

    num_bytes = 0

    def __init__(self, rng: random.Random, truth: Truth, counts: Counter[str]) -> None:
        self._rng, self._truth, self._counts = rng, truth, counts

    def propose(
        self,
        branch_id: str,
        tenant: str,
        tokens: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        **more: object,
    ) -> Draft:
        draft: list[int] = []
        for _ in range(min(limit, self._rng.choice([0, 1, 3, 8]))):
            guess = self._truth.known([*tokens.tolist(), *draft])
            wrong = guess is None or self._rng.random() < 0.2
            draft.append(self._rng.randrange(256) if wrong or guess is None else guess)
        survival = tuple(0.8**n for n in range(1, len(draft) + 1))
        return Draft(tokens=np.array(draft, dtype=np.int32), sources=(), survival=survival)

    def verified(self, branch_id: str, verified: int, accepted: int) -> None:
        self._counts["accepted"] += accepted > 0
        self._counts["rejected"] += accepted < verified

    def remember(self, tenant: str, output: TokenArray) -> None: ...

    def close(self, branch_id: str) -> None: ...


def below(rng: random.Random, model: str, block_size: int, folder: Path) -> dict[str, Any]:
    """Memory below the device, of a few blocks and states; most often with a disk."""
    config = random_model_config(model)
    block = block_bytes(config, block_size, torch.float64)
    state = state_bytes(config, torch.float64) + block
    sizes: dict[str, Any] = {
        "host_kv_bytes": rng.choice([8, 30, 400]) * block,
        "host_state_bytes": rng.choice([2, 6, 30]) * state,
    }
    if rng.random() < 0.7:
        whole = 60 * slot_bytes(block) + 20 * state_slot_bytes(state)
        sizes |= {"disk_kv_bytes": 2 * whole, "disk_kv_folder": str(folder)}
    return sizes


class Schedule:
    """One engine and what is asked of it.

    Args:
        folder: for what is to be kept on disk.
        tiers: whether there is memory below the device; None: as it comes.
        ranks: how many compute the model; of several no step fails in its forward pass, as the
            engine would end with it.
    """

    def __init__(
        self,
        seed: int,
        truth: Truth,
        counts: Counter[str],
        folder: Path,
        *,
        tiers: bool | None = None,
        ranks: int = 1,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.truth, self.counts = truth, counts
        truth.forget()
        running = rng.choice([2, 3, 5])
        ahead = rng.random() < 0.4
        self.settings: dict[str, Any] = {
            "model": f"random:{truth.model}",
            "drafter": Guesser(rng, truth, counts) if rng.random() < 0.7 else None,
            "max_draft_tokens": rng.choice([0, 8, 31]),
            "looks_ahead": ahead,
            "num_blocks": rng.choice([14, 14, 20, 40, 300]),
            "block_size": rng.choice([4, 16]),
            "max_batch_tokens": rng.choice([7, 33, 512]),
            "prefill_tokens_beside_decodes": rng.choice([3, 16, 256]),
            "max_running": running,
            "state_slots": running + rng.choice([0, 1, 3, 12]),
            "output_reserve_percent": 0,
            "cache_policy": rng.choice(["lru", "lease", "lease"]),
            "startup_profile_ms": 0,
            "tensor_parallel": ranks,
        }
        self.below: dict[str, Any] = {}
        if rng.random() < 0.5 if tiers is None else tiers:
            self.below = below(rng, truth.model, self.settings["block_size"], folder / str(seed))
        self.left: list[tuple[str, list[int]]] = []
        """Tenants and transcripts of earlier processes."""
        self._faults = random.Random(seed)
        self.driver = self._start()
        self.capacity = self.driver.engine.info.kv_capacity_tokens
        self.sessions: dict[str, list[int]] = {}
        self.owners: dict[str, str] = {}
        self.open: dict[str, str] = {}
        self.prompts: dict[str, list[int]] = {}
        self.cancelled: set[str] = set()
        self.came_back: set[str] = set()
        self.shared = [rng.randrange(32, 127) for _ in range(21)]

    def _start(self) -> EngineDriver:
        self.workers = Later(random.Random(self.rng.random()))
        driver = EngineDriver.load(workers=self.workers, **self.settings, **self.below)
        lookahead = driver.engine.computation.lookahead
        if lookahead is not None:
            lookahead.always = True
        self._fail_at_times(driver)
        return driver

    def _fail_at_times(self, driver: EngineDriver) -> None:
        """Steps of several sequences fail now and then, as without memory for their logits: in
        an order for states, in the forward pass when all layers are computed, or in the draw."""
        computation, decoder = driver.engine.computation, driver.runner.model.decoder
        forward, draw, logits = computation.forward, computation.draw, decoder._logits
        fails, alone = False, self.settings["tensor_parallel"] == 1

        def maybe_fail(chunks: Sequence[Chunk], *rest: Any, step: Any, where: str) -> Any:
            nonlocal fails
            fails = len(chunks) > 1 and self._faults.random() < 0.04
            self.counts[f"failed in its {where}"] += fails and (alone or where == "draw")
            if fails and where == "draw":
                raise RuntimeError("planted")
            return step(chunks, *rest)

        def maybe_no_logits(*arguments: Any) -> torch.Tensor:
            nonlocal fails
            if fails and alone:
                fails = False
                raise RuntimeError("planted")
            return logits(*arguments)

        def maybe_no_order(*arguments: Any, order: Any, **more: Any) -> Any:
            nonlocal fails
            if fails and self._faults.random() < 0.5:
                fails = False
                self.counts["failed in an order"] += 1
                raise RuntimeError("planted")
            return order(*arguments, **more)

        states: Any = driver.runner.states
        states.begin = partial(maybe_no_order, order=states.begin)
        states.end = partial(maybe_no_order, order=states.end)
        planted: Any = computation
        planted.forward = partial(maybe_fail, step=forward, where="forward pass")
        planted.draw = partial(maybe_fail, step=draw, where="draw")
        decoder._logits = maybe_no_logits  # type: ignore[method-assign]

    def _restart(self) -> None:
        """The engine ends and another one finds what it has left on the disk."""
        self._run()
        self._account()
        for session, tokens in self.sessions.items():
            self.left.append((self.owners[session], tokens))
        del self.left[:-6]
        self.sessions.clear()
        self.workers.hurry()
        self.driver.engine.close()
        before, self.driver = self.driver, self._start()
        self.driver.count_from(before)
        self.counts["restarted"] += 1

    def _step(self) -> None:
        self.workers.run_some()
        self.driver.step()

    def _run(self) -> None:
        """Until nothing is to be done."""
        for _ in range(20_000):
            if not self.driver.engine.has_work:
                self._settle()
                return
            self._step()
        raise AssertionError("still busy")

    def play(self, operations: int) -> None:
        """So many operations, and then what is still open to its end."""
        for _ in range(operations):
            self.operate()
        self.end()

    def operate(self) -> None:
        choice = self.rng.random()
        if choice < 0.35 and len(self.open) < 6:
            self._begin()
        elif choice < 0.39 and self.open:
            name = self.rng.choice(list(self.open))
            self.cancelled.add(name)
            self.driver.cancel(name)
            self.counts["cancelled"] += 1
        elif choice < 0.42:
            self._release()
        elif choice < 0.43 and self.below.get("disk_kv_bytes"):
            self._restart()
        else:
            for _ in range(self.rng.randint(1, 4)):
                if self.driver.engine.has_work:
                    self._step()
                    self.counts["step"] += 1
            self.driver.engine.check()
        self._settle()

    def _begin(self) -> None:
        rng = self.rng
        new = [rng.randrange(32, 127) for _ in range(rng.choice([1, 2, 7, 25]))]
        idle = [s for s in self.sessions if s not in self.open.values()]
        session, base, offset, kind = f"s{len(self.prompts)}", None, 0, "begun"
        if idle and rng.random() < 0.75:
            base = rng.choice(idle)
            held = len(self.sessions[base])
            offset, kind = held, "continued"
            chance = rng.random()
            if chance < 0.2:
                offset = max(0, held - rng.randint(1, 30))
                kind = "rewound within the ring"
            elif chance < 0.3:
                offset, kind = rng.randint(0, max(0, held - 32)), "rewound beyond it"
            elif chance < 0.4:
                new, base, offset, kind = self.sessions[base] + new, None, 0, "resent"
        if base is not None and rng.random() < 0.7:
            session = base
        elif base is not None:
            kind = "forked"
        tenant = self.owners[base] if base else rng.choice(["red", "blue"])
        if base is None and kind == "begun" and self.left and rng.random() < 0.5:
            (tenant, old), kind = rng.choice(self.left), "came back"
            new = old + new
        prefix = self.sessions[base][:offset] if base else []
        if base is None and kind == "begun" and rng.random() < 0.6:
            new = self.shared + new
        prompt = prefix + new
        limit = rng.randint(1, 16)
        if len(prompt) + limit > min(self.capacity - 16, 160):
            return
        points: tuple[int, ...] = ()
        if kind == "begun" and len(prompt) > 22:
            points = (21,)
            self.counts["header named"] += 1
        stop: tuple[str, ...] = ()
        if rng.random() < 0.2:
            coming = self.truth.continued(prompt, 3)
            stop = tuple(chr(token) for token in coming[1:] if 32 < token < 127)[:1]
        name = self.driver.request(
            new,
            session=session,
            base=base,
            offset=offset,
            max_new_tokens=limit,
            sampling=SamplingParams(temperature=0, stop=stop),
            tenant=tenant,
            resume_points=points,
        )
        self.counts[kind] += 1
        if kind == "came back":
            self.came_back.add(name)
        self.owners[session] = tenant
        self.prompts[name], self.open[name] = prompt, session
        self.sessions.setdefault(session, [])

    def _release(self) -> None:
        idle = [s for s in self.sessions if s not in self.open.values()]
        if idle:
            name = self.rng.choice(idle)
            self.driver.release(name)
            del self.sessions[name]
            self.counts["released"] += 1

    def _settle(self) -> None:
        for name in [n for n in self.open if self.driver.results[n].finish is not None]:
            result, prompt = self.driver.results[name], self.prompts[name]
            self.sessions[self.open.pop(name)] = prompt + result.tokens
            ended = {FinishReason.STOP_STRING, FinishReason.LENGTH}
            if name in self.cancelled:
                ended.add(FinishReason.CANCELLED)
            assert result.finish in ended, (name, result)
            self.truth.check(prompt, result.tokens)
            self.counts["stopped"] += result.finish is FinishReason.STOP_STRING
            if result.start is not None:
                began = result.start.resumed
                assert began is not None
                assert began.position == result.start.cached_tokens, name
                self.counts["resumed"] += began.position > 0
                self.counts[f"resumed at {began.kind or 'the start'}"] += 1
                came_back = name in self.came_back and result.start.cached_tokens > 0
                self.counts["resumed after a restart"] += came_back
                self.counts["state missing"] += "state_missing" in result.start.miss_causes

    def end(self) -> None:
        self._run()
        self.driver.engine.check()
        self._account()
        self.workers.hurry()
        self.driver.engine.close()

    def _account(self) -> None:
        stats = self.driver.engine.memory.cache.stats()
        self.counts["begun from host memory"] += stats.snapshots_raised
        self.counts["preempted"] += self.driver.preemptions
        lookahead = self.driver.engine.computation.lookahead
        if lookahead is not None:
            self.counts["decoded ahead"] += lookahead.outcomes.used
