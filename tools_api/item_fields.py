"""The fields that items of all types have, read and written.

Always true: what ``item_head`` reads is what ``head`` wrote.
"""

from typing import Any, Literal, TypedDict

from tools_api.json_fields import Fields

Status = Literal["in_progress", "completed", "incomplete"]
MAX_ID = 512
"""Characters of an item's id, and of a call's."""


class Head(TypedDict):
    """An item's own id and how far it has come."""

    id: str | None
    status: Status | None


def item_head(fields: Fields) -> Head:
    """Read both; each may be absent."""
    return {
        "id": fields.text("id", most=MAX_ID, absent=True),
        "status": fields.choice("status", Status, absent=True),
    }


def call_id_of(fields: Fields) -> str:
    """The id that a call and its output have in common."""
    return fields.text("call_id", least=1, most=MAX_ID)


def head(type_: str, id_: str | None, status: Status | None) -> dict[str, Any]:
    """The first fields of an item as it goes out; what is None is left out."""
    found: dict[str, Any] = {"type": type_}
    if id_ is not None:
        found["id"] = id_
    if status is not None:
        found["status"] = status
    return found
