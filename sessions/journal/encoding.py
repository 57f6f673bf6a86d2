"""A turn as bytes: what stands in a journal's row, and back.

A body is a JSON head, the token ids as raw int32, and the deflated terminal event; a header is
its parts as JSON and its ids. Both say their version. Bytes of another version, or that do not
hold together, are ``JournalDamaged``: a checksum has been compared before, so that nothing else
is to be expected here.

Always true: what is decoded equals what was encoded, field by field and id by id; token ids are
copied, never made again from text.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np
import orjson
import xxhash
from pydantic import TypeAdapter, ValidationError

from runtime.messages import TokenArray
from sessions.durable.compaction import opened
from sessions.durable.ledger import PriceTable, TurnUsage
from sessions.durable.packing import deflate
from sessions.durable.transcript import NOTHING, Entry, Header, LeftOut, Tail
from sessions.durable.usage_keys import UsageKeys
from sessions.journal.errors import JournalDamaged
from sessions.journal.records import DIGEST_BYTES, SERVER_DIED, StoredTurn, TurnRecord
from tools_api import exact_json
from tools_api.chat_format import TemplateOptions
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.items import Compaction, Item, Message
from tools_api.tools import FunctionTool

VERSION = 1

_STORED_ID = np.dtype("<i4")
_FRAME = struct.Struct("<BIII")
"""Version, bytes of the head, of the ids, of the terminal event."""
_USAGE = (
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "forced_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "forwards",
)
_TOOLS = TypeAdapter(tuple[FunctionTool, ...])
_TAILS = {tail.value: tail for tail in Tail}
_HEADERS_KEPT = 256


class EntryBody(NamedTuple):
    """An entry without its parent and header, which are found by name."""

    header: bytes
    """Digest of the encoded header."""
    opening: Message | None
    input_items: tuple[Item, ...]
    input_ids: TokenArray
    output_items: tuple[Item, ...]
    output_ids: TokenArray
    tail: Tail
    num_tokens: int
    open_calls: frozenset[str]
    digest: bytes
    left_out: LeftOut

    def entry(self, parent: Entry | None, header: Header) -> Entry:
        """The entry, where it belongs."""
        return Entry(
            parent=parent,
            header=header,
            opening=self.opening,
            input_items=self.input_items,
            input_ids=self.input_ids,
            output_items=self.output_items,
            output_ids=self.output_ids,
            tail=self.tail,
            num_tokens=self.num_tokens,
            open_calls=self.open_calls,
            digest=self.digest,
            left_out=self.left_out,
        )


def link_items(link: EntryBody) -> tuple[Item, ...]:
    """The items that it added to its chain, and what led that."""
    own = (*link.input_items, *link.output_items)
    return own if link.opening is None else (link.opening, *own)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnBody:
    """The part of a row beyond its columns."""

    number: int
    status: str
    reason: str | None
    usage: TurnUsage
    price: PriceTable
    cost: int
    saved: int
    accounts: tuple[str, ...]
    request_digest: bytes
    links: tuple[EntryBody, ...]
    terminal: bytes
    """The terminal event as it was sent; empty if nothing that was said is kept."""


class _Consumed(TypedDict):
    number: int
    usage: TurnUsage
    price: PriceTable
    cost: int
    saved: int
    request_digest: bytes


class HeaderCache:
    """Encoded headers and their digests: a chain's turns share one object. One thread's."""

    def __init__(self) -> None:
        self._known: dict[Header, tuple[bytes, bytes]] = {}

    def encoded(self, header: Header) -> tuple[bytes, bytes]:
        """Digest and bytes of a header."""
        found = self._known.get(header)
        if found is None:
            if len(self._known) >= _HEADERS_KEPT:
                del self._known[next(iter(self._known))]
            body = encode_header(header)
            found = self._known[header] = (xxhash.xxh3_128_digest(body), body)
        return found


def encode_header(header: Header) -> bytes:
    """Everything in it; equal headers give equal bytes."""
    parts = {
        "instructions": header.instructions,
        "opening": None if header.opening is None else header.opening.to_wire(),
        "thinking": header.options.thinking,
    }
    if header.options.effort is not None:
        parts["effort"] = header.options.effort
    tools = exact_json.dumps(_TOOLS.dump_python(header.tools)) if header.tools else b"[]"
    return _join(orjson.dumps(parts), _raw(header.ids), tools)


def decode_header(data: bytes) -> Header:
    """A header out of its row. Raises JournalDamaged."""
    head, ids, tools = _split(data)
    try:
        parts = orjson.loads(head)
        return Header(
            instructions=parts["instructions"],
            opening=_opening(parts["opening"]),
            tools=_TOOLS.validate_python(exact_json.loads(bytes(tools))),
            options=TemplateOptions(thinking=parts["thinking"], effort=parts.get("effort")),
            ids=_ids(ids),
        )
    except (KeyError, TypeError, ValueError, ValidationError, ApiError) as error:
        raise _unreadable("header", error) from error


def encode_turn(record: TurnRecord, headers: HeaderCache) -> bytes:
    """The body of its row. The headers it names have to be kept beside it."""
    ids: list[bytes] = []
    links = []
    for entry in record.links:
        ids += (_raw(entry.input_ids), _raw(entry.output_ids))
        links.append(_link_parts(entry, headers))
    parts = {
        **_consumed(record),
        "status": record.status,
        "reason": record.reason,
        "residency": [record.usage.residency, record.price.residency],
        "accounts": record.accounts,
        "links": links,
    }
    packed = deflate(record.terminal) if record.terminal else b""
    return _join(exact_json.dumps(parts), b"".join(ids), packed)


def _consumed(record: TurnRecord) -> dict[str, Any]:
    """The fields of consumption that a turn and its reservation share."""
    price = record.price
    return {
        "number": record.number,
        "usage": [getattr(record.usage, name) for name in _USAGE],
        "price": [price.input_uncached, price.input_cached, price.output, price.reasoning],
        "cost": record.cost,
        "saved": record.saved,
        "request": record.request_digest.hex(),
    }


def _read_consumed(
    parts: dict[str, Any], *, residency: int = 0, residency_price: int = 0
) -> _Consumed:
    """``_consumed`` read; KV is told of turns alone."""
    uncached, cached, output, reasoning = parts["price"]
    return {
        "number": parts["number"],
        "usage": TurnUsage(**dict(zip(_USAGE, parts["usage"], strict=True)), residency=residency),
        "price": PriceTable(
            input_uncached=uncached,
            input_cached=cached,
            output=output,
            reasoning=reasoning,
            residency=residency_price,
        ),
        "cost": parts["cost"],
        "saved": parts["saved"],
        "request_digest": bytes.fromhex(parts["request"]),
    }


def _link_parts(entry: Entry, headers: HeaderCache) -> dict[str, Any]:
    left_out = entry.left_out
    parts = {
        "header": headers.encoded(entry.header)[0].hex(),
        "opening": None if entry.opening is None else entry.opening.to_wire(),
        "input": [item.to_wire() for item in entry.input_items],
        "output": [item.to_wire() for item in entry.output_items],
        "ids": [len(entry.input_ids), len(entry.output_ids)],
        "tail": entry.tail.value,
        "tokens": entry.num_tokens,
        "calls": sorted(entry.open_calls),
        "digest": entry.digest.hex(),
    }
    if left_out == NOTHING:
        return parts
    return parts | {"left_out": [left_out.turns, left_out.tokens, left_out.behind]}


def decode_turn(turn: StoredTurn) -> TurnBody:
    """The body of a turn out of its row. Raises JournalDamaged."""
    head, ids, packed = _split(turn.body)
    try:
        parts = exact_json.loads(bytes(head))
        residency, residency_price = parts.get("residency", (0, 0))
        return TurnBody(
            **_read_consumed(parts, residency=residency, residency_price=residency_price),
            status=parts["status"],
            reason=parts["reason"],
            accounts=tuple(parts["accounts"]),
            links=_links(parts["links"], _ids(ids)),
            terminal=zlib.decompress(packed) if packed else b"",
        )
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error, ApiError) as error:
        raise _unreadable(f"turn {turn.response_id}", error) from error


def decode_links(turn: StoredTurn) -> tuple[EntryBody, ...]:
    """``decode_turn`` of what can be continued alone. Raises JournalDamaged."""
    head, ids, _ = _split(turn.body)
    try:
        return _links(exact_json.loads(bytes(head))["links"], _ids(ids))
    except (KeyError, TypeError, ValueError, AttributeError, ApiError) as error:
        raise _unreadable(f"turn {turn.response_id}", error) from error


def encode_reservation(record: TurnRecord) -> bytes:
    """Encode the record of a turn that runs, beyond its row's columns."""
    parts = {
        "request_id": record.request_id,  # first, see below
        "parent": record.parent_id,
        **_consumed(record),
        "created": record.created_s,
        "epoch": record.epoch,
        "options": record.options.decode(),
        "private": record.private,
        "keys": [record.keys.key, record.keys.model, record.keys.labels, record.keys.tools],
    }
    return orjson.dumps(parts)


def request_in_reservation(request_id: str) -> bytes:
    """Stands in what ``encode_reservation`` makes of a turn which that request began, and in no
    other."""
    return b'{"request_id":' + orjson.dumps(request_id) + b","


def decode_reservation(
    amount: bytes, *, tenant: str, session: str, response_id: str, accounts: tuple[str, ...]
) -> TurnRecord:
    """The record of the failed turn that it becomes. Raises JournalDamaged."""
    try:
        parts = orjson.loads(amount)
        return TurnRecord(
            tenant=tenant,
            session=session,
            **_read_consumed(parts),
            response_id=response_id,
            parent_id=parts["parent"],
            request_id=parts["request_id"],
            status="failed",
            reason=SERVER_DIED,
            accounts=accounts,
            created_s=parts["created"],
            epoch=parts["epoch"],
            options=parts["options"].encode(),
            private=parts["private"],
            keys=_usage_keys(parts["keys"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(f"reservation of {response_id}", error) from error


def _usage_keys(parts: list[Any]) -> UsageKeys:
    key, model, labels, tools = parts
    pairs = tuple((name, value) for name, value in labels)
    return UsageKeys(key=key, model=model, labels=pairs, tools=tuple(tools))


def _links(parts: list[dict[str, Any]], ids: TokenArray) -> tuple[EntryBody, ...]:
    links, at = [], 0
    for part in parts:
        of_input, of_output = part["ids"]
        before, middle, after = at, at + of_input, at + of_input + of_output
        at = after
        digest = bytes.fromhex(part["digest"])
        header = bytes.fromhex(part["header"])
        if len(header) != DIGEST_BYTES or after > len(ids):
            raise ValueError("its parts do not fit together")
        links.append(
            EntryBody(
                header=header,
                opening=_opening(part["opening"]),
                input_items=_opened(parse_items(part["input"], "input")),
                input_ids=ids[before:middle],
                output_items=parse_items(part["output"], "output"),
                output_ids=ids[middle:after],
                tail=_TAILS[part["tail"]],
                num_tokens=part["tokens"],
                open_calls=frozenset(part["calls"]),
                digest=digest,
                left_out=_left_out(part),
            )
        )
    if at != len(ids):
        raise ValueError("there are ids that belong to nothing")
    return tuple(links)


def _opened(items: tuple[Item, ...]) -> tuple[Item, ...]:
    return tuple(opened(item) if isinstance(item, Compaction) else item for item in items)


def _left_out(part: dict[str, Any]) -> LeftOut:
    if "left_out" not in part:
        return NOTHING
    turns, tokens, behind = part["left_out"]
    return LeftOut(turns=turns, tokens=tokens, behind=behind)


def _opening(parts: dict[str, Any] | None) -> Message | None:
    if parts is None:
        return None
    (opening,) = parse_items([parts], "opening")
    if not isinstance(opening, Message):
        raise ValueError("what leads it is no message")
    return opening


def _raw(ids: TokenArray) -> bytes:
    return ids.astype("<i4", copy=False).tobytes()


def _ids(data: memoryview) -> TokenArray:
    return np.frombuffer(data, dtype=_STORED_ID).astype(np.int32)


def _join(head: bytes, ids: bytes, rest: bytes) -> bytes:
    return _FRAME.pack(VERSION, len(head), len(ids), len(rest)) + head + ids + rest


def _split(data: bytes) -> tuple[memoryview, memoryview, memoryview]:
    """The parts of encoded bytes, none of them copied."""
    if len(data) < _FRAME.size:
        raise JournalDamaged("a row of the journal is cut short")
    version, head, ids, rest = _FRAME.unpack_from(data)
    if version != VERSION:
        raise JournalDamaged(f"a row of the journal has the unknown version {version}")
    if len(data) != _FRAME.size + head + ids + rest:
        raise JournalDamaged("a row of the journal does not have the length it says")
    parts = memoryview(data)[_FRAME.size :]
    return parts[:head], parts[head : head + ids], parts[head + ids :]


def _unreadable(what: str, error: Exception) -> JournalDamaged:
    return JournalDamaged(f"the journal's {what} cannot be read: {error}")
