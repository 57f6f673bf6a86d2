"""Engine messages as bytes: one length-prefixed frame for a batch of messages.

A frame is a fixed prefix (magic, header length, array length; little-endian), an orjson
header and the int32 token arrays of all messages of the batch, concatenated. The header
holds only JSON values of a closed set of message types, so decoding runs no code that the
peer names; every field is of its exact type (``runtime.process.field_types``), or the frame is
none. Frames above ``MAX_FRAME_BYTES`` are not sent, and refused where they arrive.
"""

import struct
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields
from typing import Any

import numpy as np
import orjson

from runtime.config import ConfigError, EngineConfig
from runtime.messages import (
    Beat,
    CachePicture,
    CancelRequest,
    DropBranch,
    EngineInfo,
    EngineMessage,
    GenerationRequest,
    Loading,
    PictureRequest,
    ReleaseBranch,
    Residency,
    SequenceOutput,
    StepOutput,
    StepStats,
    TokenArray,
    TokenLogprob,
)
from runtime.process.field_types import WrongField, build, checked

MAX_FRAME_BYTES = 256 * 1024 * 1024
PREFIX = struct.Struct("<4sII")
LEAST_LOGPROB = -9999.0
_MAGIC = b"KWF1"
_EMPTY = np.empty(0, dtype=np.int32)
_OUTPUT_DEFAULTS = {
    field.name: field.default for field in fields(SequenceOutput) if field.default is not MISSING
}
"""The values of fields of ``SequenceOutput`` that an output's row does not name."""
_STATS_DEFAULTS = asdict(StepStats())
"""Likewise of a step's figures, most of which are nothing in most steps."""


class FrameError(Exception):
    """The bytes are no frame of ours. The connection cannot be used any more."""


def _pack(header: Any, arrays: list[TokenArray]) -> bytes:
    head = orjson.dumps(header)
    body = b"".join(np.ascontiguousarray(a, dtype=np.int32).data for a in arrays)
    return PREFIX.pack(_MAGIC, len(head), len(body)) + head + body


def encode_object(value: dict[str, Any]) -> bytes:
    """A frame of nothing but an object of JSON values."""
    return _pack(value, [])


def decode_object(header: bytes, body: bytes) -> dict[str, Any]:
    """Inverse of ``encode_object``. Raises FrameError on anything else."""
    _Reader(body).end()
    try:
        return _object(orjson.loads(header))
    except (ValueError, WrongField) as error:
        raise FrameError(f"not an object: {error}") from error


def body_sizes(prefix: bytes) -> tuple[int, int]:
    """Return (header bytes, array bytes) that follow ``prefix``.

    Raises:
        FrameError: wrong magic, over the limit, or an array that is not whole int32.
    """
    magic, head, body = PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise FrameError(f"frame starts with {magic!r}")
    if PREFIX.size + head + body > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {head + body} bytes, {MAX_FRAME_BYTES} allowed")
    if body % 4:
        raise FrameError(f"token array of {body} bytes is not int32")
    return head, body


class _Reader:
    """Hands out the batch's arrays in the order in which they were written."""

    def __init__(self, body: bytes) -> None:
        self._tokens = np.frombuffer(body, dtype="<i4").astype(np.int32, copy=False)
        self._at = 0

    def take(self, count: Any) -> TokenArray:
        if type(count) is not int:
            raise FrameError(f"an array of {type(count).__name__} tokens")
        end = self._at + count
        if count < 0 or end > len(self._tokens):
            raise FrameError(f"array of {count} tokens, {len(self._tokens) - self._at} left")
        taken = self._tokens[self._at : end]
        self._at = end
        return taken

    def end(self) -> None:
        """Check that all has been taken. Raises FrameError where something is left."""
        if self._at != len(self._tokens):
            raise FrameError(f"{len(self._tokens) - self._at} tokens belong to no message")


def encode_batches(
    messages: list[EngineMessage], max_bytes: int = MAX_FRAME_BYTES
) -> Iterator[bytes]:
    """Front end -> engine: any number of messages in order, in as few frames as hold them.

    After an engine died every open branch sends its whole transcript at once.

    Raises:
        FrameError: one message alone is over the limit.
    """
    arrays = sum(m.new_tokens.nbytes for m in messages if isinstance(m, GenerationRequest))
    if arrays <= max_bytes:
        frame = encode_messages(messages)
        if len(frame) <= max_bytes:
            yield frame
            return
    if len(messages) == 1:
        raise FrameError(f"message of more than the {max_bytes} bytes allowed")
    middle = len(messages) // 2
    yield from encode_batches(messages[:middle], max_bytes)
    yield from encode_batches(messages[middle:], max_bytes)


def encode_messages(messages: list[EngineMessage]) -> bytes:
    """One frame of requests, cancels, releases and drops, of any size."""
    rows: list[Any] = []
    arrays: list[TokenArray] = []
    for message in messages:
        if isinstance(message, GenerationRequest):
            fields = {
                name: getattr(message, name)
                for name in GenerationRequest.__dataclass_fields__
                if name != "new_tokens"
            }
            rows.append(["generate", len(message.new_tokens), fields])
            arrays.append(message.new_tokens)
        elif isinstance(message, CancelRequest):
            rows.append(["cancel", 0, message.request_id])
        elif isinstance(message, PictureRequest):
            rows.append(["picture", 0, asdict(message)])
        elif isinstance(message, DropBranch):
            rows.append(["drop", 0, message.branch_id])
        else:
            rows.append(["release", 0, message.branch_id])
    return _pack(rows, arrays)


def decode_messages(header: bytes, body: bytes) -> list[EngineMessage]:
    """Inverse of ``encode_messages``. Raises FrameError on anything else."""
    reader = _Reader(body)
    try:
        messages = [_message(row, reader) for row in _list(orjson.loads(header))]
    except (ValueError, WrongField) as error:
        raise FrameError(f"not a batch of engine messages: {error}") from error
    reader.end()
    return messages


def _message(row: Any, reader: _Reader) -> EngineMessage:
    kind, count, value = _list(row, 3)
    if kind == "generate":
        return build(GenerationRequest, value, new_tokens=reader.take(count))
    if len(reader.take(count)):
        raise FrameError("tokens with a message that has none")
    if kind == "cancel":
        return CancelRequest(request_id=checked(CancelRequest, "request_id", value))
    if kind == "picture":
        return build(PictureRequest, value)
    if kind == "release":
        return ReleaseBranch(branch_id=checked(ReleaseBranch, "branch_id", value))
    if kind == "drop":
        return DropBranch(branch_id=checked(DropBranch, "branch_id", value))
    raise FrameError(f"unknown message {str(kind)[:40]!r}")


def _list(value: Any, size: int | None = None) -> list[Any]:
    if type(value) is not list or size not in (None, len(value)):
        raise WrongField(f"{type(value).__name__} where a list of {size or 'any'} belongs")
    return value


def encode_step(output: StepOutput) -> bytes:
    """Engine -> front end: what one step produced."""
    rows = [_output_row(each) for each in output.outputs]
    figures = output.stats
    stats = {
        name: value
        for name, default in _STATS_DEFAULTS.items()
        if (value := getattr(figures, name)) != default
    }
    header: dict[str, Any] = {"outputs": rows, "stats": stats}
    if output.pictures:
        header["pictures"] = [asdict(picture) for picture in output.pictures]
    if output.residency:
        header["residency"] = [(r.branch_id, r.block_us, r.gone) for r in output.residency]
    return _pack(header, [each.new_tokens for each in output.outputs])


def _output_row(output: SequenceOutput) -> tuple[int, dict[str, Any]]:
    """The number of its tokens, and what else it says. Most outputs say nearly nothing."""
    told: dict[str, Any] = {"request_id": output.request_id}
    for name, default in _OUTPUT_DEFAULTS.items():
        value = getattr(output, name)
        if value != default:
            told[name] = value
    if output.start is not None:
        told["start"] = asdict(output.start)
    if output.logprobs:
        told["logprobs"] = [_logprob_row(each) for each in output.logprobs]
    return len(output.new_tokens), told


def _logprob_row(found: TokenLogprob) -> dict[str, Any]:
    """JSON has no infinities: what cannot be has the least logarithm there is."""
    top = [(token, max(logprob, LEAST_LOGPROB)) for token, logprob in found.top]
    return {"token": found.token, "logprob": max(found.logprob, LEAST_LOGPROB), "top": top}


def encode_beat(beat: Beat) -> bytes:
    """Engine -> front end: a sign of life."""
    return _pack({"beat": asdict(beat)}, [])


def decode_report(header: bytes, body: bytes) -> StepOutput | Beat:
    """Inverse of ``encode_step`` and ``encode_beat``. Raises FrameError on anything else."""
    reader = _Reader(body)
    try:
        value = _object(orjson.loads(header))
        if "beat" in value:
            report: StepOutput | Beat = build(Beat, value["beat"])
        else:
            rows = _list(value.get("outputs"))
            report = StepOutput(
                outputs=tuple(_sequence_output(row, reader) for row in rows),
                stats=build(StepStats, value.get("stats")),
                pictures=tuple(build(CachePicture, p) for p in _list(value.get("pictures", []))),
                residency=tuple(map(_residency, _list(value.get("residency", [])))),
            )
    except (ValueError, WrongField) as error:
        raise FrameError(f"neither a step's output nor a beat: {error}") from error
    reader.end()
    return report


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise WrongField(f"{type(value).__name__} where an object belongs")
    return value


def _sequence_output(row: Any, reader: _Reader) -> SequenceOutput:
    count, values = _list(row, 2)
    tokens = _EMPTY if type(count) is int and not count else reader.take(count)
    return build(SequenceOutput, values, new_tokens=tokens)


def _residency(row: Any) -> Residency:
    branch_id, block_us, gone = _list(row, 3)
    values = {"branch_id": branch_id, "block_us": block_us, "gone": gone}
    residency = build(Residency, values)
    if residency.block_us < 0:
        raise WrongField(f"{residency.block_us} block-microseconds")
    return residency


def encode_config(config: EngineConfig) -> bytes:
    """The first frame a fresh engine process reads."""
    return _pack(asdict(config), [])


def decode_config(header: bytes, body: bytes) -> EngineConfig:
    """Inverse of ``encode_config``."""
    try:
        _Reader(body).end()
        return build(EngineConfig, orjson.loads(header))
    except (ValueError, WrongField, ConfigError) as error:
        raise FrameError(f"not an engine configuration: {error}") from error


def encode_loading(loading: Loading) -> bytes:
    """Engine -> front end, until it is ready: a sign of life."""
    return _pack({"loading": asdict(loading)}, [])


def encode_ready(info: EngineInfo) -> bytes:
    """Engine -> front end, once: it has started."""
    return _pack({"info": asdict(info)}, [])


def encode_refusal(reason: str) -> bytes:
    """Engine -> front end, instead of that: why it cannot start, for people."""
    return _pack({"error": reason}, [])


def decode_start(header: bytes, body: bytes) -> Loading | EngineInfo | str:
    """Inverse of ``encode_loading``, ``encode_ready`` and ``encode_refusal``.

    Raises:
        FrameError: it is nothing that an engine says while it starts.
    """
    try:
        _Reader(body).end()
        value = _object(orjson.loads(header))
        if "loading" in value:
            return build(Loading, value["loading"])
        if "info" in value:
            return build(EngineInfo, value["info"])
        return str(checked(SequenceOutput, "error_message", value.get("error")))
    except (ValueError, WrongField) as error:
        raise FrameError(f"not what an engine says while it starts: {error}") from error
