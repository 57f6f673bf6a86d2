"""Reading of one frame or body: the event, and what a large one has worked out with it.

The same functions serve the event loop, for what is small, and the process that reads what is
large; that one also computes what would otherwise take the loop long: the digests that a history
is looked up by, and the grammar of the tools. ``to_pieces`` and ``FromPieces`` carry it all from
one process to the other, each piece JSON of a kind of its own. Knows neither sockets nor processes.

Always true: what comes out of ``FromPieces`` equals what went into ``to_pieces``, or nothing does:
a request has as many items, and as many digests, as its head says.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import orjson

from sessions.durable.transcript import ROOT_DIGEST, roll
from sessions.durable.weights import request_bytes
from tools_api import events, exact_json
from tools_api.chat_format import ChatFormat, TemplateOptions
from tools_api.dialects.dialect_fields import NamedError
from tools_api.errors import ApiError
from tools_api.events import CancelTurn, ClientEvent, ProcessedAck, ResumeTurn, SteerRequest
from tools_api.grammar import GrammarSpec, grammar_for
from tools_api.limits import Limits
from tools_api.packed_requests import Unpacker, pack
from tools_api.requests import CreateRequest

HEAD, PART, PREPARED, DIGESTS, EVENT = range(1, 6)
"""Kinds of pieces."""
Piece = tuple[int, bytes]
_DIGESTS_A_PIECE = 512
_EVENTS = {kind.__name__: kind for kind in (CancelTurn, ResumeTurn, SteerRequest, ProcessedAck)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """The facts of the server that reading needs."""

    limits: Limits
    models: frozenset[str] | None
    """Names that a request may use; None: that is looked at later."""
    chat_format: ChatFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecomputedRequest:
    """Worked out of a request beside the event loop."""

    digests: tuple[bytes, ...]
    """``roll`` of each prefix of ``input``, from the empty one on."""
    grammar: GrammarSpec | ApiError | None
    """As ``grammar_of`` gives or raises it."""
    held_bytes: int
    """As ``request_bytes`` weighs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One frame or body that was read, and what was worked out of it."""

    content: ClientEvent | ApiError
    prepared: PrecomputedRequest | None = None
    """What was worked out of a large create; None: it was small, or is none."""


def read_frame(frame: str | bytes, context: ReadContext) -> Read:
    """Read a client's frame; a faulty one gives its error."""
    try:
        return Read(content=events.decode(frame, context.limits, context.models))
    except ApiError as error:
        return Read(content=error)


def prepared(read: Read, context: ReadContext) -> Read:
    """A create that was read, with what its turn will need."""
    request = read.content
    if not isinstance(request, CreateRequest):
        return read
    digests = tuple(accumulate(request.input, roll, initial=ROOT_DIGEST))
    grammar: GrammarSpec | ApiError | None
    try:
        grammar = grammar_of(request, context)
    except ApiError as error:
        grammar = error
    held_bytes = request_bytes(request)
    return Read(
        content=request,
        prepared=PrecomputedRequest(digests=digests, grammar=grammar, held_bytes=held_bytes),
    )


def options_of(request: CreateRequest, chat_format: ChatFormat) -> TemplateOptions:
    """How the request wants its context rendered."""
    return TemplateOptions(
        thinking=request.reasoning.thinking and chat_format.thinking,
        effort=request.reasoning.effort if chat_format.knows_effort else None,
    )


def grammar_of(request: CreateRequest, context: ReadContext) -> GrammarSpec | None:
    """The constraint on the turn's output; None if it is free.

    Raises:
        ApiError: the model cannot do what ``tool_choice`` demands.
    """
    if not request.generate:
        return None
    return grammar_for(
        context.chat_format,
        request.tools,
        request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        text_format=request.text_format,
        options=options_of(request, context.chat_format),
        lenient=request.keepwarm.lenient,
        max_calls=context.limits.max_parallel_calls,
    )


# From one process to the other


def to_pieces(read: Read) -> Iterator[Piece]:
    """The pieces from which ``FromPieces`` makes the same."""
    content = read.content
    if isinstance(content, ApiError):
        yield EVENT, orjson.dumps({"ApiError": error_fields(content)})
    elif not isinstance(content, CreateRequest):
        yield EVENT, exact_json.dumps({type(content).__name__: asdict(content)})
    else:
        head, *parts = pack(content)
        yield HEAD, head
        yield from ((PART, part) for part in parts)
        if read.prepared is not None:
            yield from _prepared_pieces(read.prepared)


def _prepared_pieces(ready: PrecomputedRequest) -> Iterator[Piece]:
    grammar, held_bytes = _grammar_fields(ready.grammar), ready.held_bytes
    yield PREPARED, orjson.dumps({"grammar": grammar, "held_bytes": held_bytes})
    for start in range(0, len(ready.digests), _DIGESTS_A_PIECE):
        some = ready.digests[start : start + _DIGESTS_A_PIECE]
        yield DIGESTS, orjson.dumps([digest.hex() for digest in some])


class FromPieces:
    """Takes pieces in their order; each costs little, however large the whole is."""

    def __init__(self) -> None:
        self._unpacker: Unpacker | None = None
        self._event: ClientEvent | ApiError | None = None
        self._ready: dict[str, Any] | None = None
        self._digests: list[bytes] = []

    def add(self, kind: int, data: bytes) -> None:
        """One more piece.

        Raises:
            ValueError: there is no such kind, or it is out of order.
        """
        if kind == EVENT and self._event is None and self._unpacker is None:
            self._event = _event(exact_json.loads(data))
        elif kind == HEAD and self._event is None and self._unpacker is None:
            self._unpacker = Unpacker(data)
        elif kind == PART and self._unpacker is not None and self._ready is None:
            self._unpacker.add(data)
        elif kind == PREPARED and self._unpacker is not None and self._ready is None:
            self._ready = orjson.loads(data)
        elif kind == DIGESTS and self._ready is not None:
            self._digests += map(bytes.fromhex, orjson.loads(data))
        else:
            raise ValueError(f"piece of kind {kind}")

    def read(self) -> Read:
        """The whole. Raises ValueError where nothing came, or not all of it."""
        if self._event is not None:
            return Read(content=self._event)
        if self._unpacker is None:
            raise ValueError("no pieces")
        request = self._unpacker.request()
        if self._ready is None:
            return Read(content=request)
        if len(self._digests) != len(request.input) + 1:
            raise ValueError(f"{len(self._digests)} digests of {len(request.input)} items")
        return Read(
            content=request,
            prepared=PrecomputedRequest(
                digests=tuple(self._digests),
                grammar=_grammar(self._ready["grammar"]),
                held_bytes=int(self._ready["held_bytes"]),
            ),
        )


def error_fields(error: ApiError) -> dict[str, Any]:
    """The fields of an error, for JSON."""
    names = ("message", "code", "param", "status", "type", "stream_id", "retry_after_s")
    fields = {name: getattr(error, name) for name in names}
    return fields | {"named": isinstance(error, NamedError)}


def error_from(fields: dict[str, Any]) -> ApiError:
    """The inverse of ``error_fields``."""
    kind = NamedError if fields.pop("named") else ApiError
    return kind(fields.pop("message"), **fields)


def _event(told: dict[str, Any]) -> ClientEvent | ApiError:
    ((name, fields),) = told.items()
    return error_from(fields) if name == "ApiError" else _EVENTS[name](**fields)


def _grammar_fields(grammar: GrammarSpec | ApiError | None) -> dict[str, Any] | None:
    if isinstance(grammar, ApiError):
        return {"error": error_fields(grammar)}
    return None if grammar is None else {"spec": asdict(grammar)}


def _grammar(told: dict[str, Any] | None) -> GrammarSpec | ApiError | None:
    if told is None:
        return None
    return error_from(told["error"]) if "error" in told else GrammarSpec(**told["spec"])
