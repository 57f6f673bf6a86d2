"""Nodes of a picture of the cache."""

from runtime.messages import PictureNode


def picture_node(**changes: object) -> PictureNode:
    """A leaf of one block on the device."""
    fields: dict[str, object] = {
        "parent": None,
        "owner": "acme",
        "start": 0,
        "tokens": 16,
        "tier": 0,
        "klass": 0,
        "age": 1,
        "children": 0,
        "holders": 1,
        "branches": ("b",),
        "lease_s": 0.0,
        "head": (4, 5),
    }
    return PictureNode(**{**fields, **changes})  # type: ignore[arg-type]
