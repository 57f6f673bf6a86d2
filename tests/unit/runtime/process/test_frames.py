"""Frames: whatever goes in comes out, and foreign bytes are refused."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config import EngineConfig
from runtime.messages import (
    Beat,
    CachePicture,
    CancelRequest,
    DropBranch,
    EngineMessage,
    ErrorKind,
    FinishReason,
    GenerationRequest,
    Loading,
    PictureRequest,
    ReleaseBranch,
    Residency,
    ResumePoint,
    SamplingParams,
    SequenceOutput,
    SequenceStart,
    StepOutput,
    StepStats,
    TokenLogprob,
)
from runtime.process import frames
from tests.support.fake_engine import INFO
from tests.support.mutations import WRONG, places, replaced
from tests.support.pictures import picture_node
from tests.support.requests import make_request
from tools_api.grammar import GrammarSpec


def _split(frame: bytes) -> tuple[bytes, bytes]:
    head, body = frames.body_sizes(frame[: frames.PREFIX.size])
    rest = frame[frames.PREFIX.size :]
    assert len(rest) == head + body
    return rest[:head], rest[head:]


def _request(tokens: int, name: str = "r1") -> GenerationRequest:
    return make_request(
        tokens,
        request_id=name,
        base_branch_id="s0",
        base_offset=7,
        max_new_tokens=5,
        sampling=SamplingParams(seed=2**63 + 1, stop=("###", "ä"), top_logprobs=2),
        grammar=GrammarSpec(lark="start: /x/", trigger="<tool_call>"),
        banned_tokens=(3, 9),
        deadline_s=1.5,
    )


def _same(a: object, b: object) -> bool:
    if not isinstance(a, GenerationRequest | SequenceOutput):
        return a == b
    names = [n for n in type(a).__dataclass_fields__ if n != "new_tokens"]
    return (
        type(a) is type(b)
        and all(getattr(a, n) == getattr(b, n) for n in names)
        and np.array_equal(a.new_tokens, b.new_tokens)
    )


def test_a_batch_of_messages_survives_the_wire_in_order() -> None:
    messages: list[EngineMessage] = [
        _request(5),
        CancelRequest(request_id="r0"),
        _request(0, "r2"),
        ReleaseBranch(branch_id="s9"),
        _request(100_000, "r3"),
    ]
    decoded = frames.decode_messages(*_split(frames.encode_messages(messages)))
    assert len(decoded) == len(messages)
    assert all(_same(a, b) for a, b in zip(messages, decoded, strict=True))
    assert isinstance(decoded[0], GenerationRequest)
    assert decoded[0].new_tokens.dtype == np.int32


def test_a_step_survives_the_wire() -> None:
    outputs = (
        SequenceOutput(
            request_id="r1",
            new_tokens=np.array([1, 2, 2**31 - 1], dtype=np.int32),
            forced=2,
            forwards=1,
            start=SequenceStart(
                input_tokens=9,
                cached_tokens=4,
                queue_s=0.25,
                miss_causes={"first_sight": 5},
                ending_known=False,
                resumed=ResumePoint(position=4, kind="header", tier="host"),
            ),
            logprobs=(TokenLogprob(token=1, logprob=-0.5, top=((1, -0.5), (4, -2.0))),),
        ),
        SequenceOutput(
            request_id="r2",
            new_tokens=np.empty(0, dtype=np.int32),
            queue_position=3,
            finish=FinishReason.ERROR,
            error=ErrorKind.GRAMMAR,
            error_message="no",
        ),
    )
    step = StepOutput(outputs=outputs, stats=StepStats(running=2, step_s=0.5))
    decoded = frames.decode_report(*_split(frames.encode_step(step)))
    assert isinstance(decoded, StepOutput)
    assert decoded.stats == step.stats
    assert all(_same(a, b) for a, b in zip(outputs, decoded.outputs, strict=True))


def test_every_figure_of_a_step_survives_the_wire() -> None:
    """Each with a value of its own. One that is not told is 0, as before it was invented."""
    numbers: dict[str, Any] = {
        field.name: {"host_disk": 0.5 + n}
        if field.type == dict[str, float]
        else [n, n]
        if field.type in (list[float], list[int])
        else n
        for n, field in enumerate(dataclasses.fields(StepStats), start=1)
    }
    stats = StepStats(**numbers)
    header, body = _split(frames.encode_step(StepOutput(outputs=(), stats=stats)))
    decoded = frames.decode_report(header, body)
    assert isinstance(decoded, StepOutput)
    assert dataclasses.asdict(decoded.stats) == numbers
    assert min(n for n in numbers.values() if isinstance(n, int)) == 1
    report = orjson.loads(header)
    for name in ("ahead_held_delta", "ahead_second_passes_delta", "ahead_dropped_delta"):
        assert report["stats"].pop(name) == numbers[name]
    older = frames.decode_report(orjson.dumps(report), body)
    assert isinstance(older, StepOutput)
    silent = {"ahead_held_delta": 0, "ahead_second_passes_delta": 0, "ahead_dropped_delta": 0}
    assert dataclasses.asdict(older.stats) == numbers | silent


def test_a_beat_survives_the_wire() -> None:
    beat = Beat(turn=7, working=True)
    assert frames.decode_report(*_split(frames.encode_beat(beat))) == beat


def test_the_greeting_survives_the_wire() -> None:
    config = EngineConfig(model="random:qwen3-tiny", num_blocks=64)
    assert frames.decode_config(*_split(frames.encode_config(config))) == config
    loading = Loading(stage="loading the model", memory_bytes=1 << 40)
    assert frames.decode_start(*_split(frames.encode_loading(loading))) == loading
    assert frames.decode_start(*_split(frames.encode_ready(INFO))) == INFO
    assert frames.decode_start(*_split(frames.encode_refusal("no file"))) == "no file"


@pytest.mark.parametrize(
    "header", [b"", b"{}", b"5", b'"loading"', b'{"loading": {}}', b'{"info": {"dtype": 1}}']
)
def test_what_nobody_says_at_the_start_is_refused(header: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.decode_start(header, b"")


@pytest.mark.parametrize(
    "prefix",
    [
        b"XXXX" + (5).to_bytes(4, "little") + (4).to_bytes(4, "little"),
        b"KWF1" + (5).to_bytes(4, "little") + (3).to_bytes(4, "little"),
        b"KWF1" + (2**32 - 1).to_bytes(4, "little") + (4).to_bytes(4, "little"),
    ],
    ids=["magic", "not int32", "too large"],
)
def test_a_bad_prefix_is_refused(prefix: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.body_sizes(prefix)


def test_the_size_limit_holds_exactly() -> None:
    def prefix(total: int) -> bytes:
        head = total - frames.PREFIX.size
        return b"KWF1" + head.to_bytes(4, "little") + (0).to_bytes(4, "little")

    limit = frames.MAX_FRAME_BYTES
    assert frames.body_sizes(prefix(limit)) == (limit - frames.PREFIX.size, 0)
    with pytest.raises(frames.FrameError):
        frames.body_sizes(prefix(limit + 1))


@pytest.mark.parametrize("max_bytes", [3_000, 9_000, 1_000_000])
def test_messages_that_fit_no_frame_together_go_in_several(max_bytes: int) -> None:
    messages: list[EngineMessage] = [_request(500, f"r{n}") for n in range(9)]
    sent = list(frames.encode_batches(messages, max_bytes))
    assert all(len(frame) <= max_bytes for frame in sent)
    assert (len(sent) == 1) == (max_bytes == 1_000_000)
    decoded = [m for frame in sent for m in frames.decode_messages(*_split(frame))]
    assert all(_same(a, b) for a, b in zip(messages, decoded, strict=True))


def test_a_message_that_no_frame_holds_is_refused() -> None:
    size = len(frames.encode_messages([_request(500)]))
    assert len(list(frames.encode_batches([_request(500)], size))) == 1
    for limit in (size - 1, 1_999):
        with pytest.raises(frames.FrameError, match="bytes allowed"):
            list(frames.encode_batches([_request(500)], limit))


@pytest.mark.parametrize(
    "header",
    [b"{", b"[1]", b'[["explode", 0, "x"]]', b'[["generate", 0, {}]]', b'[["generate", 9, null]]'],
)
def test_foreign_headers_are_refused(header: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.decode_messages(header, b"")


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"5", b"[]", b"{}", b'{"beat": 1}', b'{"outputs": [[1]]}', b'{"outputs": [5]}'),
        b'{"outputs": [], "stats": {"no such field": 1}}',
    ],
)
def test_foreign_reports_are_refused(header: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.decode_report(header, b"")


def test_an_array_that_is_shorter_than_announced_is_refused() -> None:
    header, body = _split(frames.encode_messages([_request(5)]))
    with pytest.raises(frames.FrameError, match="array of 5"):
        frames.decode_messages(header, body[:-4])


def test_an_array_that_belongs_to_no_message_is_refused() -> None:
    header, body = _split(frames.encode_messages([_request(5)]))
    with pytest.raises(frames.FrameError, match="2 tokens belong to no message"):
        frames.decode_messages(header, body + bytes(8))
    header, body = _split(frames.encode_step(StepOutput(outputs=(), stats=StepStats())))
    with pytest.raises(frames.FrameError, match="1 tokens belong to no message"):
        frames.decode_report(header, body + bytes(4))


REQUEST = _request(2)
OUTPUT = SequenceOutput(
    request_id="r1",
    new_tokens=np.array([4, 5], dtype=np.int32),
    start=SequenceStart(
        input_tokens=9,
        cached_tokens=4,
        queue_s=0.25,
        miss_causes={"new": 5},
        resumed=ResumePoint(position=4, kind="end", tier="device"),
    ),
    logprobs=(TokenLogprob(token=1, logprob=-0.5, top=((1, -0.5),)),),
    finish=FinishReason.ERROR,
    error=ErrorKind.GRAMMAR,
    error_message="no",
)
NODE = picture_node(
    parent=0, owner="t", start=16, tier=1, klass=2, age=3, children=4, holders=5, lease_s=1.5
)
STEP = StepOutput(
    outputs=(OUTPUT,),
    stats=StepStats(steps_s=[0.5], steps_prefill_tokens=[3], transfer_s_delta={"host_disk": 0.5}),
    residency=(Residency(branch_id="b", block_us=7, gone=True),),
    pictures=(CachePicture(tenant=None, nodes=(NODE,), num_nodes=1, tenant_blocks={"t": 3}),),
)
BATCH: list[EngineMessage] = [
    REQUEST,
    CancelRequest(request_id="r"),
    ReleaseBranch(branch_id="b"),
    DropBranch(branch_id="b"),
    PictureRequest(tenant="t", max_nodes=9),
]
SAID: dict[str, tuple[bytes, Callable[[bytes, bytes], Any], Callable[[Any], bytes]]] = {
    "requests": (
        frames.encode_messages(BATCH),
        frames.decode_messages,
        frames.encode_messages,
    ),
    "step": (frames.encode_step(STEP), frames.decode_report, frames.encode_step),
    "beat": (
        frames.encode_beat(Beat(turn=7, working=True)),
        frames.decode_report,
        frames.encode_beat,
    ),
    "loading": (
        frames.encode_loading(Loading(stage="reading weights", memory_bytes=1 << 20)),
        frames.decode_start,
        frames.encode_loading,
    ),
    "configuration": (
        frames.encode_config(EngineConfig(num_blocks=64)),
        frames.decode_config,
        frames.encode_config,
    ),
    "ready": (frames.encode_ready(INFO), frames.decode_start, frames.encode_ready),
}
"""Of each kind of frame one, how it is read, and how what was read is said again."""


@pytest.mark.parametrize("kind", SAID)
def test_a_field_of_another_type_is_refused_and_what_is_read_is_what_was_said(kind: str) -> None:
    """Every value of every frame is replaced by each of eleven others. Read is only what says the
    same when it is written again: nothing was converted, dropped or made up."""
    frame, decode, encode = SAID[kind]
    header, body = _split(frame)
    said = orjson.loads(header)
    refused = 0
    found = places(said)
    for place in found:
        for wrong in WRONG:
            mutant = orjson.dumps(replaced(said, place, wrong))
            try:
                read = decode(mutant, body)
            except frames.FrameError:
                refused += 1
                continue
            again = orjson.loads(_split(encode(read))[0])
            assert again == _with_defaults(orjson.loads(mutant), again), (place, wrong)
    assert refused > 0.6 * len(found) * len(WRONG)


def _with_defaults(sent: Any, read: Any) -> Any:
    """What was sent; fields that were left out have the values they were read with, and numbers
    the type."""
    if isinstance(sent, dict) and isinstance(read, dict):
        return {
            name: _with_defaults(sent[name], read[name]) if name in sent else read[name]
            for name in read
        }
    if isinstance(sent, list) and isinstance(read, list) and len(sent) == len(read):
        return [_with_defaults(a, b) for a, b in zip(sent, read, strict=True)]
    return sent


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_k", []), ("top_k", True), ("temperature", "1"), ("temperature", -1), ("seed", 0.5)],
)
def test_what_once_killed_the_engine_is_refused(field: str, value: object) -> None:
    header, body = _split(frames.encode_messages([REQUEST]))
    said = orjson.loads(header)
    said[0][2]["sampling"][field] = value
    with pytest.raises(frames.FrameError, match=f"SamplingParams.{field}"):
        frames.decode_messages(orjson.dumps(said), body)


def test_nobody_publishes_to_all_tenants() -> None:
    header, body = _split(frames.encode_messages([REQUEST]))
    said = orjson.loads(header)
    said[0][2]["tenant"] = None
    with pytest.raises(frames.FrameError, match="tenant: null, not a string"):
        frames.decode_messages(orjson.dumps(said), body)


def test_an_output_names_only_what_is_not_the_default() -> None:
    output = SequenceOutput(request_id="r", new_tokens=np.zeros(2, np.int32), forwards=1)
    header, _ = _split(frames.encode_step(StepOutput(outputs=(output,), stats=StepStats())))
    assert orjson.loads(header)["outputs"] == [[2, {"request_id": "r", "forwards": 1}]]


def test_an_output_without_its_request_is_refused() -> None:
    header = orjson.dumps({"outputs": [[0, {"forwards": 1}]], "stats": {}})
    with pytest.raises(frames.FrameError, match="lacks request_id"):
        frames.decode_report(header, b"")


def test_what_cannot_be_has_the_least_logprob() -> None:
    least = TokenLogprob(token=1, logprob=-np.inf, top=((2, -np.inf),))
    output = SequenceOutput(request_id="r", new_tokens=np.zeros(1, np.int32), logprobs=(least,))
    decoded = frames.decode_report(
        *_split(frames.encode_step(StepOutput(outputs=(output,), stats=StepStats())))
    )
    assert isinstance(decoded, StepOutput)
    (found,) = decoded.outputs[0].logprobs
    assert (found.logprob, found.top) == (frames.LEAST_LOGPROB, ((2, frames.LEAST_LOGPROB),))


@given(st.data())
def test_a_damaged_frame_is_refused_or_read_and_nothing_else_happens(data: st.DataObject) -> None:
    """Bytes cut off, put in or changed anywhere, in what either side says."""
    output = SequenceOutput(
        request_id="r1", new_tokens=np.arange(3, dtype=np.int32), finish=FinishReason.STOP
    )
    step = StepOutput(outputs=(output,), stats=StepStats())
    frame, decode = data.draw(
        st.sampled_from(
            [
                (frames.encode_messages([_request(3)]), frames.decode_messages),
                (frames.encode_step(step), frames.decode_report),
                (frames.encode_beat(Beat(turn=1, working=True)), frames.decode_report),
                (frames.encode_loading(Loading(stage="x", memory_bytes=1)), frames.decode_start),
                (frames.encode_refusal("no"), frames.decode_start),
                (frames.encode_config(EngineConfig()), frames.decode_config),
            ]
        )
    )
    begin = data.draw(st.integers(0, len(frame)))
    end = data.draw(st.integers(begin, min(begin + 8, len(frame))))
    damaged = frame[:begin] + data.draw(st.binary(max_size=8)) + frame[end:]
    with contextlib.suppress(frames.FrameError):
        head, body = frames.body_sizes(damaged[: frames.PREFIX.size].ljust(12, b"\0"))
        rest = damaged[frames.PREFIX.size :]
        if len(rest) >= head + body:  # otherwise the reader would wait for more
            decode(rest[:head], rest[head : head + body])
