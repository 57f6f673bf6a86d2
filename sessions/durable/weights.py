"""Memory that requests, items and tools hold, and how much of it may be held at once.

The figures are estimates in the safe direction: a thing is never weighed at less than half of
what the process grows by when it keeps it (a test holds them to that, for items of every kind).
Waiting requests, and messages that are still arriving, are held to three bounds each: of their
connection, their tenant and the server.

Always true: what the account holds is the sum of what was taken and not yet given back.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from sys import getsizeof

from tools_api import errors
from tools_api.built_in_items import (
    AdditionalTools,
    BuiltInCall,
    BuiltInOutput,
    ConfigurationUpdate,
)
from tools_api.errors import ApiError
from tools_api.exact_json import dumps
from tools_api.items import Compaction, CustomToolCall, FunctionCall, Item, Message, Reasoning
from tools_api.limits import MIB, Limits
from tools_api.requests import CreateRequest
from tools_api.tools import FunctionTool

REQUEST_BYTES = 4096
_OBJECT_BYTES = 640
_PART_BYTES = 560
_LIST_ENTRY_BYTES = 16
_JSON_BYTES = {b"{": 240, b"[": 100, b'"': 32, b",": 40}
"""Above its text, what each of these stands for takes once it is parsed."""


def item_bytes(item: Item) -> int:
    """Size of one item with all its texts, also those that no model reads."""
    texts: list[str | None] = [item.id, item.status]
    parts = 0
    match item:
        case Message():
            parts = len(item.content)
            for part in item.content:
                texts.append(part.text)
        case FunctionCall():
            texts += [item.call_id, item.name, item.namespace, item.arguments]
        case CustomToolCall():
            texts += [item.call_id, item.name, item.namespace, item.input]
        case BuiltInCall():
            texts += [item.call_id, item.arguments, item.execution]
        case BuiltInOutput():
            texts += [item.call_id, item.output, item.told]
        case AdditionalTools():
            texts.append(item.tools)
        case ConfigurationUpdate():
            texts.append(item.told)
        case Reasoning():
            texts += [item.encrypted_content, *item.content, *item.summary]
        case Compaction():
            texts.append(item.encrypted_content)
            if item.stands_for is not None:
                return sum(map(item_bytes, item.stands_for.items)) + getsizeof(texts[-1]) + 512
        case _:
            texts += [item.call_id, item.output]
    held = _OBJECT_BYTES + parts * _PART_BYTES
    for text in texts:
        if text is not None:
            held += getsizeof(text) + _LIST_ENTRY_BYTES
    return held


def tool_bytes(tool: FunctionTool) -> int:
    """Size of one tool with its schema."""
    custom = tool.custom
    texts = (tool.name, tool.description, tool.place, custom and custom.definition)
    held = sum(getsizeof(text) for text in texts if text is not None)
    return 3 * _OBJECT_BYTES + held + json_bytes(dumps(tool.parameters))


def json_bytes(text: bytes) -> int:
    """Size of ``text`` once it is parsed."""
    return len(text) + sum(text.count(sign) * each for sign, each in _JSON_BYTES.items())


def text_held(text: str | None) -> int:
    """Size of a text that may be absent."""
    return 0 if text is None else getsizeof(text)


def request_bytes(request: CreateRequest) -> int:
    """Size in memory of a whole request, roughly."""
    schema = request.text_format.json_schema
    texts = (
        *(request.instructions, request.text_format.description),
        *(request.user, request.safety_identifier, request.prompt_cache_key, request.model),
        *chain.from_iterable(request.metadata.items()),
    )
    return (
        REQUEST_BYTES
        + sum(map(text_held, texts))
        + (0 if schema is None else json_bytes(dumps(schema)))
        + sum(map(item_bytes, request.input))
        + sum(map(tool_bytes, request.tools))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bytes that may be held: by a tenant, a connection, and in all."""

    connection: int
    tenant: int
    server: int


def open_requests(limits: Limits) -> "HeldBytes":
    """The account of the requests that are not answered yet."""
    bounds = Bounds(
        connection=limits.max_held_per_connection,
        tenant=limits.max_held_per_tenant,
        server=limits.max_held_bytes,
    )
    return HeldBytes(bounds, "open requests")


@dataclass(slots=True, eq=False)
class Tally:
    """Bytes that several tables hold together."""

    num_bytes: int = 0


@dataclass(slots=True, eq=False)
class MemoryHold:
    """The memory that one request or message holds, until it is given back."""

    account: "HeldBytes"
    tenant: str
    connection_id: str
    num_bytes: int

    def resize(self, num_bytes: int) -> None:
        """Hold so many bytes from now on.

        Raises:
            ApiError: as ``HeldBytes.hold``; it holds what it did.
        """
        if num_bytes > self.num_bytes:
            self.account.hold(self.tenant, self.connection_id, num_bytes - self.num_bytes)
        else:
            self.account.change(self.tenant, self.connection_id, num_bytes - self.num_bytes)
        self.num_bytes = num_bytes

    def release(self) -> None:
        """Give the memory back: the request is answered, or taken. May be called again."""
        held, self.num_bytes = self.num_bytes, 0
        self.account.change(self.tenant, self.connection_id, -held)


class HeldBytes:
    """The memory of all requests that are not answered yet, or of what else is named."""

    def __init__(self, bounds: Bounds, what: str) -> None:
        self._bounds = bounds
        self._what = what
        self._by_tenant: Counter[str] = Counter()
        self._by_connection: Counter[str] = Counter()
        self.total = 0

    @property
    def holders(self) -> list[str]:
        """The tenants and the connections that hold something."""
        return [*self._by_tenant, *self._by_connection]

    def hold(self, tenant: str, connection_id: str, num_bytes: int) -> MemoryHold:
        """Hold so many bytes more.

        Raises:
            ApiError: that is more than the connection, the tenant or the server may; nothing
                is held.
        """
        bounds: Iterable[tuple[str, int, int]] = (
            ("connection", self._by_connection[connection_id], self._bounds.connection),
            ("tenant", self._by_tenant[tenant], self._bounds.tenant),
            ("server", self.total, self._bounds.server),
        )
        for whose, held, most in bounds:
            if held + num_bytes > most:
                raise _too_much(f"{self._what} of this {whose}", held, num_bytes, most)
        self.change(tenant, connection_id, num_bytes)
        return MemoryHold(self, tenant, connection_id, num_bytes)

    def change(self, tenant: str, connection_id: str, num_bytes: int) -> None:
        """Hold so much more, or less."""
        self.total += num_bytes
        for account, name in ((self._by_tenant, tenant), (self._by_connection, connection_id)):
            account[name] += num_bytes
            if not account[name]:
                del account[name]


def _too_much(whose: str, held: int, num_bytes: int, most: int) -> ApiError:
    return errors.overloaded(
        f"{whose} hold {held / MIB:.1f} MiB, this one needs "
        f"{num_bytes / MIB:.1f} more, {most / MIB:g} are allowed"
    )
