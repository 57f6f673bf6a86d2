"""Compaction items: how what is left of a history goes to a client and comes back.

An item holds what it stands for, readable by who looks, and a signature for one tenant, one model
and one way of making tokens of text. Knows keys and items, no histories.

Always true: what is opened is what was sealed; an item that was sealed for somebody else, or
changed by a bit, is not opened; nothing that is sealed holds another compaction.
"""

import base64
import hashlib
import hmac
import zlib
from collections.abc import Sequence
from dataclasses import replace

from tools_api import errors, exact_json
from tools_api.call_order import with_names
from tools_api.item_reading import parse_items, unpacked
from tools_api.items import (
    Compaction,
    CompactionKind,
    Item,
    StandsFor,
)
from tools_api.json_fields import join

KEY_BYTES = 32
MAX_IN_A_ROW = 16
"""Compactions that may stand in one input behind the newest that stands for all before it."""


class TenantSeal:
    """Signs for one tenant and one model."""

    def __init__(self, key: bytes, made_for: tuple[bytes, ...]) -> None:
        self._key = key
        self._made_for = made_for

    def sealed(self, kind: CompactionKind, stands_for: StandsFor, id_: str | None) -> Compaction:
        """The item that stands for that, opened."""
        told = {"items": [item.to_wire() for item in stands_for.items]}
        parts: dict[str, object] = {**told, "summary": stands_for.summary_at}
        packed = _text(zlib.compress(exact_json.dumps(parts)))
        body = f"kw1{kind[0]}.{packed}"
        signature = "" if kind == "inner" else self.signature_of(body)
        return opened(Compaction(encrypted_content=f"{body}.{signature}", id=id_))

    def refuse_foreign(self, item: Compaction, path: str) -> None:
        """Raise ApiError unless this tenant's item was made for this model."""
        body, _, signature = item.encrypted_content.rpartition(".")
        if not hmac.compare_digest(signature, self.signature_of(body)):
            raise errors.invalid_value(
                join(path, "encrypted_content"),
                "it was changed, or made for another tenant, model or tokenizer; send the history "
                "that it stands for",
            )

    def signature_of(self, body: str) -> str:
        """The signature of the tenant's item, in hexadecimal."""
        parts = (*self._made_for, body.encode())
        told = b"".join(len(part).to_bytes(8) + part for part in parts)
        return _text(hmac.digest(self._key, told, hashlib.sha256))


class Seal:
    """Seals of all tenants for one model; the key makes servers understand each other's items."""

    def __init__(self, key: bytes, made_for: bytes) -> None:
        """``made_for``: the model, and what makes token ids of its texts."""
        self._key = key
        self._made_for = made_for

    def of(self, tenant: str) -> TenantSeal:
        """The seal of the tenant with that name."""
        made_for = (self._made_for, tenant.encode("utf-8", "surrogatepass"))
        return TenantSeal(self._key, made_for)


def opened(item: Compaction) -> Compaction:
    """The item with what it stands for; it was signed here, or stood in a journal."""
    if item.stands_for is not None:
        return item
    parts = unpacked(item.encrypted_content)
    items = parse_items(parts["items"], "encrypted_content")
    if any(isinstance(inner, Compaction) for inner in items):
        raise ValueError("a compaction stands in a compaction")
    named = with_names(items, items)
    return replace(item, stands_for=StandsFor(items=named, summary_at=parts["summary"]))


def standing(item: Compaction) -> StandsFor:
    """The items for which an opened item stands."""
    stands_for = opened(item).stands_for
    assert stands_for is not None
    return stands_for


def opened_input(items: Sequence[Item], seal: TenantSeal) -> tuple[tuple[Item, ...], bool]:
    """The items of a request that count, its compactions opened; and whether what is before them
    does not.

    Raises:
        ApiError: a compaction was not sealed here for that tenant, or there are too many.
    """
    places = [n for n, item in enumerate(items) if isinstance(item, Compaction)]
    if not places:
        return tuple(items), False
    whole = [n for n in places if getattr(items[n], "kind", None) == "whole"]
    start = whole[-1] if whole else 0
    if sum(n >= start for n in places) > MAX_IN_A_ROW:
        raise errors.invalid_value("input", f"more than {MAX_IN_A_ROW} compaction items in a row")
    kept = list[Item]()
    for number, item in enumerate(items):
        if isinstance(item, Compaction):
            seal.refuse_foreign(item, join("input", number))
        if number >= start:
            kept.append(_opened_at(number, item) if isinstance(item, Compaction) else item)
    return tuple(kept), bool(whole)


def _opened_at(number: int, item: Compaction) -> Compaction:
    try:
        return opened(item)
    except ValueError as bad:
        path = join(join("input", number), "encrypted_content")
        raise errors.invalid_value(path, str(bad)) from None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
