"""A scripted server's answers over HTTP: transcripts, sessions, and calls that wait.

Answers as a real server does, in its words. Knows no socket.
"""

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote

from keepwarm.scripted.sessions import KeptResponse, ScriptedSessions
from sessions.durable.call_states import CallState, decided
from tools_api import errors
from tools_api.call_decisions import read_decision
from tools_api.errors import ApiError
from tools_api.exact_json import dumps
from tools_api.items import Call, Item
from tools_api.limits import DEFAULT_LIMITS
from tools_api.wire import parse_json


def answered(kept: ScriptedSessions, target: str, body: bytes | None) -> tuple[int, bytes]:
    """Status and body for a path below ``/v1``, its query with it; POST where there is a body."""
    path, _, query = target.partition("?")
    parts = [unquote(part) for part in path.split("/")[1:]]
    try:
        return 200, dumps(_answer(kept, parts, query, body))
    except ApiError as error:
        told = error.event()["error"]
        return error.status, dumps({"error": told})


def _answer(kept: ScriptedSessions, parts: list[str], query: str, body: bytes | None) -> Any:
    match parts:
        case ["sessions", name] if body is None:
            session = kept.sessions.get(name)
            if session is None:
                raise errors.session_not_found(name)
            told = {"name": name, "head": session.head, "turns": session.turns}
            return {"object": "session", **told}
        case ["responses", id_] if body is None:
            return _found(kept, id_).wire
        case ["responses", id_, "input_items"] if body is None:
            return _page(_found(kept, id_), query)
        case ["responses", id_, "calls"] if body is None:
            return _calls(_found(kept, id_))
        case ["responses", id_, "calls"] if body is not None:
            return _decide(_found(kept, id_), body)
    raise ApiError("There is nothing at this path.", code=None, status=404)


def _found(kept: ScriptedSessions, id_: str) -> KeptResponse:
    found = kept.responses.get(id_)
    if found is None:
        raise errors.no_such_response(id_)
    return found


def _page(kept: KeptResponse, query: str) -> dict[str, Any]:
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    items = [_item(kept.id, number, item) for number, item in enumerate(kept.items[: kept.inputs])]
    if asked.get("order") != "asc":
        items.reverse()
    ids = [item["id"] for item in items]
    first = ids.index(asked["after"]) + 1 if "after" in asked else 0
    page = items[first : first + int(asked.get("limit", 20))]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": first + len(page) < len(items),
    }


def _item(response_id: str, number: int, item: Item) -> dict[str, Any]:
    return item.to_wire() | {"id": item.id or f"item_{response_id}_{number}"}


def _calls(kept: KeptResponse) -> dict[str, Any]:
    made = [item for item in kept.items[kept.inputs :] if isinstance(item, Call)]
    data = []
    for call in made:
        if call.status != "incomplete":
            state = kept.calls.get(call.call_id, CallState(call_id=call.call_id))
            wire = {key: value for key, value in call.to_wire().items() if key != "status"}
            data.append(wire | state.to_wire())
    return {
        "object": "list",
        "response_id": kept.id,
        "session": kept.session.name,
        "data": data,
    }


def _decide(
    kept: KeptResponse, body: bytes, clock: Callable[[], float] = time.time
) -> dict[str, Any]:
    asked = read_decision(parse_json(body, DEFAULT_LIMITS, "body"))
    if asked.call_id not in [item["call_id"] for item in _calls(kept)["data"]]:
        raise errors.call_not_found(asked.call_id)
    session = kept.session
    if asked.session is not None and (session.name, session.head) != (asked.session, kept.id):
        raise errors.call_not_open(asked.session, kept.id)
    state = kept.calls.get(asked.call_id, CallState(call_id=asked.call_id))
    kept.calls[asked.call_id] = decided(state, asked, key="", now_s=clock())
    return kept.calls[asked.call_id].to_wire()
