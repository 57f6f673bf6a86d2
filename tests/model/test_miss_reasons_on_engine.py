"""Misses caused on a real engine: each is told on the session page and in the metrics."""

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from runtime.config import EngineConfig
from runtime.process.loading import load_engine
from runtime.tokenizer import Tokenizer
from sessions.durable.ledger import PriceTable
from sessions.durable.store import ConnectionStore, Store
from sessions.pages.metrics import Metrics
from sessions.pages.views import Views, Wish
from sessions.tenants import Principal
from sessions.turns.connection import Connection
from sessions.turns.effects import Effects, Work
from sessions.turns.service import ServedModel, Service
from tests.support.clock import FakeClock
from tests.support.dashboards import make_dashboard
from tests.support.sessions_rig import tool
from tests.unit.sessions.pages.test_metrics import values
from tools_api.chat_families import chat_format_for
from tools_api.limits import Limits

LONG = "You are a careful agent of a shop for shoes and hats. " * 6
TURN_S = 60.0


class Place:
    """A server's inside on a real engine, with a connection for each tenant."""

    def __init__(self, *, num_blocks: int = 256, **engine: Any) -> None:
        self._config = EngineConfig(
            model="random:qwen3-tiny",
            num_blocks=num_blocks,
            dtype="float64",
            device="cpu",
            threads=1,
            **engine,
        )
        self._engine = load_engine(self._config)
        self.clock = FakeClock(1000.0)
        info, ids = self._engine.info, itertools.count(1)
        tokenizer = Tokenizer.load(Path(info.tokenizer_folder), vocab_size=info.vocab_size)
        self.store = Store(limits=Limits(), prices=PriceTable(), clock=self.clock)
        chat_format = chat_format_for(
            info.model_type, lambda name: tokenizer.special_id(name) is not None
        )
        self._service = Service(
            model=ServedModel(
                name="default",
                aliases=frozenset(),
                tokenizer=tokenizer,
                chat_format=chat_format,
                max_context_tokens=1500,
            ),
            store=self.store,
            limits=Limits(),
            clock=self.clock,
            wall_clock=FakeClock(),
            new_id=lambda prefix: f"{prefix}_{next(ids)}",
        )
        self.tenant = "t"
        self._connections: dict[str, Connection] = {}
        self.metrics = Metrics()
        self._dashboard = make_dashboard(self.clock, self.store)
        self._views = Views(
            dashboard=self._dashboard, wall_clock=FakeClock(), num_connections=lambda: 1
        )

    def connection(self, tenant: str, *, continues_heads: bool = True) -> Connection:
        found = self._connections.get(f"{tenant} {continues_heads}")
        if found is None:
            whose = self.store.tenant(tenant)
            visible = ConnectionStore(
                self.store, tenant=whose, connection_id="c", continues_heads=continues_heads
            )
            found = self._connections[f"{tenant} {continues_heads}"] = Connection(
                connection_id="c", tenant=whose, service=self._service, visible=visible
            )
        return found

    def turn(
        self, text: str = "Hello", *, tenant: str | None = None, whole: bool = False, **fields: Any
    ) -> dict[str, Any]:
        """A greedy turn of the session "s"; ``whole``: over an API that sends whole histories."""
        connection = self.connection(tenant or self.tenant, continues_heads=not whole)
        event = {
            "type": "response.create",
            "instructions": LONG,
            "input": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_output_tokens": 16,
            "keepwarm": {"session": "s"},
        }
        events = self._carry(connection, connection.receive(json.dumps(event | fields)))
        deadline = time.monotonic() + TURN_S
        while connection.num_active:
            assert time.monotonic() < deadline, "the turn does not end"
            time.sleep(self._engine.pause_s)
            step = self._engine.step()
            for output in step.outputs if step is not None else ():
                events += self._carry(connection, connection.output(output))
        found: dict[str, Any] = events[-1]["response"]
        return found

    def begin(self, tenant: str) -> None:
        """From here on it is another tenant's, with metrics from zero."""
        self.tenant, self.metrics = tenant, Metrics()

    def restart_engine(self) -> None:
        self._engine = load_engine(self._config)
        self.store.engine_lost()

    def leases_see(self, seconds: float) -> None:
        """Let time pass for the leases alone: they run on the engine's own clock."""
        retention = self._engine.memory.cache.retention
        clock = retention.clock
        retention.clock = lambda: clock() + seconds

    def _carry(self, connection: Connection, effects: Effects) -> list[dict[str, Any]]:
        events = [json.loads(frame) for frame in effects.frames]
        self._engine.submit(list(effects.requests))
        for ended in effects.ended:
            self._dashboard.turn_finished(ended.report)
            self.metrics.turn_finished(ended.report)
        for question in effects.questions:
            work = question.asked
            answer = work.call() if isinstance(work, Work) else None
            events += self._carry(connection, connection.answer(question.id, answer))
        return events

    def shown(self) -> dict[str, dict[str, Any]]:
        """Of the newest turn on the session's page, misses by reason."""
        self.clock.advance(1.0)
        wish = Wish(view="session", session="s")
        parts = self._views.parts(Principal(tenant=self.tenant), wish)
        newest = max(name for name in parts if name.startswith("t0"))
        return {miss["reason"]: miss for miss in orjson.loads(parts[newest])["misses"]}


def fill(place: Place, sessions: int) -> None:
    for number in range(sessions):
        text = f"{number} other words. " * 24
        place.turn(text, instructions=text, keepwarm={"session": f"other {number}"})


def new_session(place: Place) -> None:
    place.turn()


def new_input(place: Place) -> None:
    place.turn()
    place.turn()


def tools_changed(place: Place) -> None:
    place.turn(tools=[tool("a")], tool_choice="none")
    place.turn(tools=[tool("a"), tool("b")], tool_choice="none")


def instructions_changed(place: Place) -> None:
    place.turn()
    place.turn(instructions=LONG + "Be brief.")


def history_changed(place: Place) -> None:
    first = [{"role": "user", "content": "Hello " * 20}]
    place.turn(whole=True, input=first)
    said = [{"role": "user", "content": "Hello " * 12 + "edited " * 8}]
    answer = {"role": "assistant", "content": "Hm."}
    place.turn(whole=True, input=[*said, answer, {"role": "user", "content": "Go on."}])


def truncated(place: Place) -> None:
    for number in range(8):
        place.turn(f"number {number} " * 40, truncation="auto")
        if "truncated" in place.shown():
            return


def evicted(place: Place) -> None:
    place.turn()
    place.clock.advance(30.0)
    fill(place, 16)
    place.turn()


def expired(place: Place) -> None:
    forced = {"tools": [tool("a")], "tool_choice": "required", "max_output_tokens": 64}
    hint = {"session": "s", "expected_tool_ms": 1}
    response = place.turn(**forced, keepwarm=hint)
    (called,) = [item for item in response["output"] if item["type"] == "function_call"]
    place.leases_see(60.0)
    fill(place, 16)
    answer = {"type": "function_call_output", "call_id": called["call_id"], "output": "5"}
    place.turn(input=[answer], **forced)


def forked(place: Place) -> None:
    for length in range(1, 9):  # one of them ends inside a block
        first = place.turn("word " * length)
        place.turn(previous_response_id=first["id"])
        place.turn("Or so?", previous_response_id=first["id"])
        if "forked" in place.shown():
            return


def restarted(place: Place) -> None:
    place.turn()
    place.restart_engine()
    place.turn()


def other_tenant(place: Place) -> None:
    place.turn(tenant="other")
    place.turn()


def partial_block(place: Place) -> None:
    for text in ("Hello", "Hello there", "Hello there again"):
        place.turn(text)


def model_changed(place: Place) -> None:
    response = place.turn()
    place.restart_engine()
    stored = place.store.tenant(place.tenant).responses.get(response["id"])
    assert stored is not None
    # As the journal hands over what was said to another model.
    place.store.branches.drop(stored.entry)
    place.store.branches.recalled(stored.entry, foreign=True)
    place.turn()


def recalled_after_a_restart(place: Place) -> None:
    response = place.turn()
    place.restart_engine()
    stored = place.store.tenant(place.tenant).responses.get(response["id"])
    assert stored is not None
    place.store.branches.drop(stored.entry)
    place.store.branches.recalled(stored.entry, foreign=False)
    place.turn()


CASES: list[tuple[Callable[[Place], None], str, str]] = [
    (new_session, "new_session", "new: never seen for this tenant"),
    (new_input, "new_input", "new: this turn's own input"),
    (tools_changed, "tools_changed", "tools changed at token "),
    (instructions_changed, "instructions_changed", "instructions changed at token "),
    (history_changed, "history_changed", "history changed at token "),
    (truncated, "truncated", "context truncated to fit at token "),
    (evicted, "evicted", "evicted after "),
    (expired, "expired", "evicted after its lease ran out"),
    (forked, "forked", "forked inside a block"),
    (restarted, "restarted", "engine restarted"),
    (recalled_after_a_restart, "restarted", "engine restarted"),
    (model_changed, "model_changed", "model changed"),
    (other_tenant, "new_session", "new: never seen for this tenant"),
    (partial_block, "partial_block", "last block was not full"),
]
SMALL = {evicted, expired}
"""Those that need a cache which other sessions fill."""


@pytest.fixture(scope="module")
def small() -> Place:
    return Place(num_blocks=96)


@pytest.fixture(scope="module")
def large() -> Place:
    return Place(num_blocks=512)


@pytest.mark.parametrize(
    ("cause", "reason", "words"), CASES, ids=lambda each: getattr(each, "__name__", "")
)
@pytest.mark.samples(2)
def test_a_caused_miss_is_told_on_the_page_and_in_the_metrics(
    cause: Callable[[Place], None], reason: str, words: str, small: Place, large: Place
) -> None:
    place = small if cause in SMALL else large
    place.begin(cause.__name__)
    cause(place)
    misses = place.shown()
    assert reason in misses, misses
    assert misses[reason]["words"].startswith(words)
    counted = values(place.metrics)
    assert (
        counted[f"keepwarm_missed_tokens_total{{cause={reason}}}"] >= misses[reason]["tokens"] > 0
    )
    missed = sum(n for name, n in counted.items() if name.startswith("keepwarm_missed_tokens"))
    computed = counted["keepwarm_input_tokens_total"] - counted["keepwarm_cached_tokens_total"]
    assert missed == computed
