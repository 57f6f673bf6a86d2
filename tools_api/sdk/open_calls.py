"""Calls that wait for somebody, as the server keeps them: read, decided, begun and ended.

The server's journal holds what was decided and that a tool has begun, so that another process goes
on where this one ended. Knows no tools: which calls wait is said by ``tools_api.sdk.held_turns``.

Always true: what is asked here may be asked twice, so that a server which dies in between is asked
again.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from tools_api.item_reading import parse_items
from tools_api.items import Call
from tools_api.sdk.answers import AnyCall
from tools_api.sdk.chain import Chain
from tools_api.sdk.connection import Connection
from tools_api.sdk.failures import Refused

CallStage = Literal["pending", "approved", "rejected", "begun", "ended"]
_TOO_LATE = frozenset({"call_decided", "call_not_approved"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """A call that its session waits for, and how far it has come."""

    call: AnyCall
    state: CallStage = "pending"
    """``pending``: nobody has decided; ``begun``: its tool was begun, and whether it came to its
    end is not known; ``ended``: its output is kept, and goes with the next run."""
    by: str = ""
    """The name of whoever decided."""
    reason: str = ""
    """Why."""
    decided_at: float | None = None
    """When, in seconds since the epoch."""
    begun_at: float | None = None
    """When its tool was begun."""
    output: str | None = None
    """The tool's, of a call that has ended."""


class OpenCalls:
    """The calls of the response at which one session stands."""

    def __init__(self, connection: Connection, chain: Chain) -> None:
        self._connection = connection
        self._chain = chain
        self._looked_up: str | None = None
        """The response at which the server says that the session stands."""
        self.holder = f"run-{uuid.uuid4().hex}"
        """Whoever begins calls here."""

    async def response(self) -> str | None:
        """Id of the response at which the session stands; None: it has none.

        Raises:
            Refused, ConnectionLost: the server could not say.
        """
        if self._chain.head is not None:
            return self._chain.head
        if self._chain.name is None:
            return None
        try:
            name = quote(self._chain.name, safe="")
            found = await self._connection.ask_patiently(f"/sessions/{name}")
        except Refused as error:
            if error.code == "session_not_found":
                return None
            raise
        self._looked_up = found["head"]
        return self._looked_up

    async def listed(self) -> tuple[PendingCall, ...]:
        """All of them, in the order in which they were written. Errors as for ``response``."""
        response = await self.response()
        if response is None:
            return ()
        found = await self._connection.ask_patiently(_path(response))
        return tuple(map(_pending, found["data"]))

    async def decide(self, call_id: str, decision: str, **fields: Any) -> PendingCall:
        """Say something about a call; how it then stands.

        Raises:
            Refused: there is no such call here, or somebody decided otherwise before.
            ConnectionLost: the server did not come back.
            ValueError: the session has no response.
        """
        response = await self.standing()
        if response is None:
            raise ValueError("the session has no response yet, so no call waits")
        body = {"call_id": call_id, "decision": decision, **fields, **self._guard()}
        found = await self._connection.ask_patiently(_path(response), body)
        listed = await self._connection.ask_patiently(_path(response))
        items = [item for item in listed["data"] if item["call_id"] == call_id]
        return _pending(items[0] | found)

    async def begin(self, call_id: str, *, needs_approval: bool, again: bool) -> bool:
        """Say that a tool is about to run; False: somebody else has begun it, or it may not."""
        fields = {"decision": "begin", "needs_approval": needs_approval, "again": again}
        try:
            await self._say(call_id, **fields, **self._guard())
        except Refused as error:
            if error.code in _TOO_LATE:
                return False
            raise
        return True

    async def end(self, call_id: str, output: str) -> None:
        """Say what a tool gave."""
        await self._say(call_id, decision="end", output=output)

    async def _say(self, call_id: str, **fields: Any) -> None:
        response = await self.standing()
        assert response is not None
        body = {"call_id": call_id, "holder": self.holder, **fields}
        await self._connection.ask_patiently(_path(response), body)

    async def standing(self) -> str | None:
        """The response whose calls were listed last."""
        return self._chain.head or self._looked_up or await self.response()

    def _guard(self) -> dict[str, Any]:
        """A response that was looked up may have been left behind meanwhile: then nothing is
        decided."""
        return {"session": self._chain.name} if self._chain.head is None else {}


def _path(response: str) -> str:
    return f"/responses/{quote(response, safe='')}/calls"


def _pending(found: Mapping[str, Any]) -> PendingCall:
    (call,) = parse_items([{k: v for k, v in found.items() if k not in _OF_STATE}], "call")
    assert isinstance(call, Call)
    return PendingCall(
        call=call,
        state=found["state"],
        by=found.get("by", ""),
        reason=found.get("reason", ""),
        decided_at=found.get("decided_at"),
        begun_at=found.get("begun_at"),
        output=found.get("output"),
    )


_OF_STATE = frozenset(
    {"state", "by", "key", "reason", "decided_at", "holder", "begun_at", "output"}
)
