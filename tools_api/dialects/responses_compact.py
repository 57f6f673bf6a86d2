"""``POST /v1/responses/compact``: a history made short, without a turn.

A body is that of a response that only compacts; the answer is what a new chain is to begin with:
the messages of the user, then one item for all else. Nothing is stored. ``keepwarm.context`` says
what went and what it cost, as in a response; null: nothing could be left out.
"""

from typing import Any

from tools_api import errors
from tools_api.dialects import dialect_events
from tools_api.dialects.dialect import DialectRequest
from tools_api.dialects.responses_http import Responses
from tools_api.requests import COMPACT_ALONE


class CompactWriter:
    """Writes the one object; there is no stream."""

    def feed(self, event: dict[str, Any]) -> bytes:
        """Write nothing: the answer is not streamed."""
        return b""

    def whole(self, response: dict[str, Any]) -> dict[str, Any]:
        """See ``DialectWriter``."""
        if response["status"] == "failed":
            raise dialect_events.failure(response)
        own = response["id"].removeprefix("resp_")
        return {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [_named(item, f"msg_{own}_{n}") for n, item in enumerate(response["output"])],
            "usage": response["usage"],
            "keepwarm": {"context": response["keepwarm"].get("context")},
        }


def _named(item: dict[str, Any], id_: str) -> dict[str, Any]:
    if item["type"] != "message":
        return item
    return {"id": id_, "status": "completed"} | item


class _Compact(Responses):
    def read(self, body: Any) -> DialectRequest:
        """As for a response; see ``Dialect``."""
        asked = super().read(body)
        if asked.streamed:
            raise errors.unsupported_parameter("stream", "a compaction is answered whole")
        create = asked.create | {COMPACT_ALONE: True, "store": False}
        return DialectRequest(create=create, streamed=False, writer=CompactWriter())

    def writer(self, **settings: bool) -> Any:
        """The writer of the answer, which has no settings."""
        return CompactWriter()


COMPACT = _Compact()
