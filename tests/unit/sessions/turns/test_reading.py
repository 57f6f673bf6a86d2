"""What is read in another process is what is read here, with what it has worked out."""

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest

from sessions.durable.transcript import ROOT_DIGEST, roll_all
from sessions.turns.reading import (
    DIGESTS,
    EVENT,
    HEAD,
    PART,
    PREPARED,
    FromPieces,
    Piece,
    PrecomputedRequest,
    Read,
    ReadContext,
    error_fields,
    error_from,
    grammar_of,
    prepared,
    read_frame,
    to_pieces,
)
from tests.support.reading import CONTEXT
from tests.support.sessions_rig import tool
from tests.unit.tools_api.test_grammar import accepts
from tools_api.dialects.dialect_fields import NamedError
from tools_api.errors import ApiError
from tools_api.events import CancelTurn, SteerRequest
from tools_api.requests import CreateRequest

FRAMES: list[dict[str, Any]] = [
    {"type": "response.create", "input": [{"role": "user", "content": "a"}] * 3,
     "tools": [tool("f")], "tool_choice": "required"},
    {"type": "response.create", "input": "hi", "stream_id": "s"},
    {"type": "response.create", "input": [{"type": "reasoning", "summary": []},
                                          {"role": "user", "content": "a"}]},
    {"type": "response.create", "input": [{"type": "reasoning", "encrypted_content": "x"}] * 3},
    {"type": "response.create", "input": [{"role": "user", "content": "a"}] * 1500},
    {"type": "response.create", "generate": False},
    {"type": "response.create", "stream_id": "s", "model": "nobody's"},
    {"type": "response.create", "input": "hi", "tools": [tool("f")],
     "text": {"format": {"type": "json_object"}}, "tool_choice": "required"},
    {"type": "response.cancel", "stream_id": "s"},
    {"type": "response.steer", "previous_response_id": "r", "input": [1, {"a": None}]},
    {"type": "response.processed", "response_id": "r"},
    {"type": "no"},
]  # fmt: skip


def carry(pieces: Iterable[Piece]) -> Read:
    taken = FromPieces()
    for kind, data in pieces:
        taken.add(kind, data)
    return taken.read()


def carried(read: Read) -> Read:
    return carry(to_pieces(read))


def comparable(read: Read) -> Any:
    def plain(value: Any) -> Any:
        return error_fields(value) if isinstance(value, ApiError) else value

    ready = read.prepared
    return plain(read.content), ready and (ready.digests, plain(ready.grammar), ready.held_bytes)


@pytest.mark.parametrize("limit", [1, 3])
def test_a_turn_makes_as_many_parallel_calls_as_allowed_and_no_more(limit: int) -> None:
    context = replace(CONTEXT, limits=replace(CONTEXT.limits, max_parallel_calls=limit))
    frame = {"type": "response.create", "input": "hi", "tools": [tool("f")]}
    request = read_frame(orjson.dumps(frame).decode(), context).content
    assert isinstance(request, CreateRequest)
    spec = grammar_of(request, context)
    assert spec is not None
    call = '\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert accepts(spec, "\n<tool_call>".join([call] * limit))
    assert not accepts(spec, "\n<tool_call>".join([call] * (limit + 1)))


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: str(frame)[10:60])
def test_what_is_read_comes_through_the_pieces_as_it_was(frame: dict[str, Any]) -> None:
    read = prepared(read_frame(orjson.dumps(frame).decode(), CONTEXT), CONTEXT)
    assert (read.prepared is not None) == isinstance(read.content, CreateRequest)
    assert comparable(carried(read)) == comparable(read)


def test_a_create_brings_its_digests_and_its_grammar() -> None:
    read = carried(prepared(read_frame(orjson.dumps(FRAMES[0]).decode(), CONTEXT), CONTEXT))
    request, ready = read.content, read.prepared
    assert isinstance(request, CreateRequest)
    assert isinstance(ready, PrecomputedRequest)
    lengths = range(len(request.input) + 1)
    assert list(ready.digests) == [roll_all(ROOT_DIGEST, request.input[:n]) for n in lengths]
    assert ready.grammar == grammar_of(request, CONTEXT) is not None


def test_a_model_that_is_not_served_is_refused_before_its_input_is_looked_at() -> None:
    frame = {"type": "response.create", "model": "x", "input": [{"type": "nonsense"}]}
    error = read_frame(orjson.dumps(frame).decode(), CONTEXT).content
    assert isinstance(error, ApiError)
    assert error.code == "model_not_found"


def test_an_error_keeps_whose_names_it_uses() -> None:
    error = NamedError("m", code="c", param="p", status=404, type="t")
    assert isinstance(error_from(error_fields(error)), NamedError)
    assert not isinstance(error_from(error_fields(ApiError("m", code=None))), NamedError)


def test_pieces_out_of_order_or_of_no_kind_are_faults() -> None:
    for kind in (PART, 99):
        with pytest.raises(ValueError, match="piece of kind"):
            FromPieces().add(kind, b"{}")
    with pytest.raises(ValueError, match="no pieces"):
        FromPieces().read()
    for kind in (PREPARED, DIGESTS):
        with pytest.raises(ValueError, match="piece of kind"):
            FromPieces().add(kind, b"{}")


def test_a_request_of_which_pieces_are_missing_or_too_many_is_none() -> None:
    read = prepared(read_frame(orjson.dumps(FRAMES[0]).decode(), CONTEXT), CONTEXT)
    pieces = list(to_pieces(read))
    kinds = [kind for kind, _ in pieces]
    assert kinds == [HEAD, PART, PART, PREPARED, DIGESTS]
    for at in (0, 1, 2, 4):
        with pytest.raises(ValueError, match=r"piece|digests|request of"):
            carry([*pieces[:at], *pieces[at + 1 :]])
    for at in range(len(pieces)):
        with pytest.raises(ValueError, match=r"piece|digests|request of"):
            carry([*pieces[: at + 1], *pieces[at:]])
    with pytest.raises(ValueError, match="piece of kind"):
        carry([*pieces, (EVENT, b'{"CancelTurn":{}}')])


def test_an_error_says_after_its_way_when_to_come_back() -> None:
    error = ApiError("m", code="c", status=503, retry_after_s=1.5)
    assert error_from(error_fields(error)).retry_after_s == 1.5


def test_an_event_stays_an_event() -> None:
    read = carried(Read(content=CancelTurn(response_id="r", stream_id=None)))
    assert read.content == CancelTurn(response_id="r", stream_id=None)
    assert isinstance(CONTEXT, ReadContext)


def test_an_event_keeps_its_numbers_to_the_last_digit() -> None:
    steered = [10**30, Decimal("0.1000000000000000000001"), 0.1, "1e400"]
    sent = SteerRequest(previous_response_id="r", input=steered)
    assert repr(carried(Read(content=sent)).content) == repr(sent)
