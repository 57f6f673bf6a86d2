"""Checked requests as JSON in pieces, and back without checking them again.

A large request is read in a process of its own; what it found has to become the same objects
in the event loop, and there neither validation nor one long parse has a place. A piece holds
part of the tools or of the items, and no more than ``PIECE_BYTES`` unless one alone is longer.
What a model's fields are is taken from its annotations, so that a new field is not forgotten.
The head says how many tools and items follow.

Trusts what the pieces hold: they come from ``pack`` in a process of our own, never from a client.

Always true: ``Unpacker`` gives a request equal to the one that was packed, or none.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from tools_api.exact_json import dumps, loads
from tools_api.items import Item
from tools_api.requests import CreateRequest
from tools_api.tools import FunctionTool

PIECE_BYTES = 32 * 1024
_LISTS = ("tools", "input")
_ITEMS = {name: item for item in get_args(Item) for name in get_args(get_type_hints(item)["type"])}
"""Kinds of items by their types; some have several."""

Restore = Callable[[Any], Any]


def pack(request: CreateRequest) -> Iterator[bytes]:
    """The pieces of a request: its head, then its tools, then its items."""
    counts = {name: len(getattr(request, name)) for name in _LISTS}
    yield dumps({"fields": _told(request, without=_LISTS), "counts": counts})
    for name in _LISTS:
        for piece in _in_pieces(map(_plain, getattr(request, name))):
            yield b'{"%b":[%b]}' % (name.encode(), piece)


class Unpacker:
    """Takes the pieces in their order."""

    def __init__(self, head: bytes) -> None:
        told = loads(head)
        self._fields, self._counts = told["fields"], told["counts"]
        self._lists: dict[str, list[Any]] = {name: [] for name in _LISTS}

    def add(self, piece: bytes) -> None:
        """Add one more piece of a packed request."""
        for name, values in loads(piece).items():
            restore = _restored_item if name == "input" else _restorer(FunctionTool)
            self._lists[name] += map(restore, values)

    def request(self) -> CreateRequest:
        """The whole request; nothing is added afterwards.

        Raises:
            ValueError: other numbers of tools or items came than the head says.
        """
        lists = {name: tuple(values) for name, values in self._lists.items()}
        counts = {name: len(values) for name, values in lists.items()}
        if counts != self._counts:
            raise ValueError(f"a request of {self._counts}, and {counts} came")
        made: CreateRequest = _restore(CreateRequest, self._fields)
        vars(made).update(lists)
        return made


def _in_pieces(values: Iterable[Any]) -> Iterator[bytes]:
    piece: list[bytes] = []
    size = 0
    for value in values:
        text = dumps(value)
        if piece and size + len(text) > PIECE_BYTES:
            yield b",".join(piece)
            piece, size = [], 0
        piece.append(text)
        size += len(text) + 1
    if piece:
        yield b",".join(piece)


# To JSON


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel) or is_dataclass(value):
        return _told(value)
    if isinstance(value, bytes):
        return value.hex()
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def _told(value: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields that are not what they are by default."""
    kind: Any = type(value)
    defaults = _defaults(kind)
    told = {
        name: _plain(found)
        for name in _hints(kind)
        if name not in without
        and ((found := getattr(value, name)) is not defaults.get(name, _MISSING))
    }
    if isinstance(value, get_args(Item)):
        told["type"] = value.type
    return told


# And back


def _restore(kind: Any, told: dict[str, Any]) -> Any:
    """The object of which ``told`` says what is not the default. Nothing is checked."""
    values = _defaults(kind) | told
    for name, restore in _restorers(kind).items():
        if name in told and told[name] is not None:
            values[name] = restore(told[name])
    if not issubclass(kind, BaseModel):
        return kind(**values)
    made = object.__new__(kind)
    _set(made, "__dict__", values)
    _set(made, "__pydantic_fields_set__", set(told))
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


def _restored_item(told: dict[str, Any]) -> Any:
    return _restore(_ITEMS[told["type"]], told)


_set = object.__setattr__
_MISSING = object()


@cache
def _hints(kind: Any) -> dict[str, Any]:
    own = kind.model_fields if issubclass(kind, BaseModel) else {f.name for f in fields(kind)}
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in own}


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    """Defaults of fields that may be shared."""
    if issubclass(kind, BaseModel):
        infos = kind.model_fields.items()
        return {n: f.default for n, f in infos if not f.is_required() and not f.default_factory}
    return {f.name: f.default for f in fields(kind)}


@cache
def _restorers(kind: Any) -> dict[str, Restore]:
    """How to make of JSON what the fields hold that JSON does not know."""
    found = {name: _restorer(hint) for name, hint in _hints(kind).items()}
    return {name: restore for name, restore in found.items() if restore is not None}


@cache
def _restorer(hint: Any) -> Any:
    """None: JSON has it as it is."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _restorer(inner[0])
    if origin is UnionType or origin is Union:
        several = [kind for kind in inner if kind is not NoneType]
        return _restorer(several[0]) if len(several) == 1 else None
    if hint is bytes:
        return bytes.fromhex
    if origin is tuple:
        return _tuple_of(_restorer(inner[0]))
    if isinstance(hint, type) and (issubclass(hint, BaseModel) or is_dataclass(hint)):
        return lambda told: _restore(hint, told)
    return None


def _tuple_of(restore: Restore | None) -> Restore:
    if restore is None:
        return tuple
    each = restore
    return lambda values: tuple(map(each, values))
