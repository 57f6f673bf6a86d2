"""Calls of a response over HTTP: which there are, what was decided about each, and deciding.

Decisions are kept where turns are: in the journal, so that they outlive client and server, or,
without one, as long as their response is in memory. What a decision may be is said by
``sessions.durable.call_states``. Knows no socket.
"""

import weakref
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import orjson

from sessions.durable.call_states import CallState, decided
from sessions.durable.response_table import StoredResponse
from sessions.durable.store import Store
from sessions.http.exchange import Call
from sessions.http.message import HttpResponse, http_error, json_response
from sessions.journal.errors import JournalError
from sessions.journal.journal import Journal
from sessions.turns.recollection import journal_error
from sessions.wire.http_responses import StoredResponses
from sessions.wire.journal_desk import JournalDesk
from tools_api import errors
from tools_api.built_in_items import CALL_TYPES
from tools_api.call_decisions import CallDecision, read_decision
from tools_api.limits import Limits
from tools_api.wire import parse_json

_CALLS = frozenset({"function_call", "custom_tool_call", *CALL_TYPES})
MAX_BODY_BYTES = 8 << 20
Change = Callable[[CallState], CallState]


class _CallMemory:
    """States of calls where there is no journal: they go with their response."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[StoredResponse, dict[str, CallState]] = (
            weakref.WeakKeyDictionary()
        )

    def states(self, stored: StoredResponse) -> dict[str, CallState]:
        return self._of.get(stored, {})

    def change(self, stored: StoredResponse, asked: CallDecision, change: Change) -> CallState:
        if asked.session is not None:
            session = stored.session
            if session.name != asked.session or session.head_id != stored.id:
                raise errors.call_not_open(asked.session, stored.id)
        states = self._of.setdefault(stored, {})
        states[asked.call_id] = change(states.get(asked.call_id, CallState(call_id=asked.call_id)))
        return states[asked.call_id]


class ResponseCalls:
    """Handlers of ``/v1/responses/{id}/calls`` and ``/v1/sessions/{name}``."""

    def __init__(
        self,
        *,
        stored: StoredResponses,
        store: Store,
        limits: Limits,
        wall_clock: Callable[[], float],
        desk: Callable[[], tuple[JournalDesk, Journal] | None],
    ) -> None:
        """``desk``: the journal with who asks it, if there is one; it comes after this object."""
        self._stored = stored
        self._store = store
        self._limits = limits
        self._wall_clock = wall_clock
        self._desk = desk
        self._memory = _CallMemory()

    async def show_session(self, call: Call) -> HttpResponse:
        """``GET /v1/sessions/{name}``: the response at which it stands."""
        tenant, name, desk = call.principal.tenant, unquote(call.argument), self._desk()
        if desk is None:
            known = self._store.tenant(tenant).known_session(name)
            if known is None:
                raise errors.session_not_found(name)
            return json_response(_session(name, known.head_id, known.turns_begun))
        try:
            record = await desk[0].beside(tenant, partial(desk[1].session, tenant, name))
        except JournalError as error:
            raise journal_error(error) from error
        if record is None:
            raise errors.session_not_found(name)
        return json_response(_session(name, record.head_id, record.turns_begun))

    async def show(self, call: Call) -> HttpResponse:
        """``GET``: the response's calls, each with its state."""
        stored = await self._stored.find(call)
        states, tenant, desk = self._memory.states(stored), call.principal.tenant, self._desk()
        if desk is not None:
            try:
                read = partial(desk[1].call_states, tenant, stored.id)
                states = await desk[0].beside(tenant, read)
            except JournalError as error:
                raise journal_error(error) from error
        data = [
            item | states.get(item["call_id"], CallState(call_id=item["call_id"])).to_wire()
            for item in _calls(stored)
        ]
        listed = {"object": "list", "response_id": stored.id, "session": stored.session.name}
        return json_response({**listed, "data": data})

    async def decide(self, call: Call) -> HttpResponse:
        """``POST``: decide about a call, or say that its tool begins or has ended. The answer is
        the call's state, once it is durable."""
        if len(call.body) > MAX_BODY_BYTES:
            raise http_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too long.")
        asked = read_decision(parse_json(call.body, self._limits, "body"))
        stored = await self._stored.find(call)
        if asked.call_id not in [item["call_id"] for item in _calls(stored)]:
            raise errors.call_not_found(asked.call_id)
        key, now_s = call.principal.key_name, self._wall_clock()

        def change(state: CallState) -> CallState:
            return decided(state, asked, key=key, now_s=now_s)

        desk, tenant = self._desk(), call.principal.tenant
        if desk is None:
            return json_response(self._memory.change(stored, asked, change).to_wire())
        place = (tenant, stored.id, asked.call_id)
        work = partial(desk[1].change_call, *place, change, asked.session)
        try:
            state = await desk[0].beside(tenant, work)
        except JournalError as error:
            raise journal_error(error) from error
        if state is None:
            raise errors.no_such_response(stored.id)
        return json_response(state.to_wire())


def _session(name: str, head: str | None, turns: int) -> dict[str, Any]:
    return {"object": "session", "name": name, "head": head, "turns": turns}


def _calls(stored: StoredResponse) -> list[dict[str, Any]]:
    """The calls that the response made whole, as its object has them, without their status."""
    output = orjson.loads(stored.wire)["output"]
    return [
        {key: value for key, value in item.items() if key != "status"}
        for item in output
        if item["type"] in _CALLS and item.get("status") != "incomplete"
    ]
