"""What ranks say to each other until the first step: as it was said, or refused."""

import pytest

from runtime.messages import Loading
from runtime.process import frames
from runtime.process.frames import FrameError
from runtime.process.rank_frames import (
    RankBelow,
    RankBlocks,
    RankFault,
    RankMessage,
    RankMet,
    RankMoved,
    RankProducts,
    RankRoom,
    RankStart,
    decode,
    encode,
)


def parts(frame: bytes) -> tuple[bytes, bytes]:
    head, _ = frames.body_sizes(frame[: frames.PREFIX.size])
    rest = frame[frames.PREFIX.size :]
    return rest[:head], rest[head:]


@pytest.mark.parametrize(
    "message",
    [
        RankStart(rank=3, folder="/a/b"),
        RankMet(),
        RankProducts(),
        RankProducts(few="tiles", many="packed", from_rows=17),
        RankRoom(num_blocks=9, files="abc"),
        RankBlocks(num_blocks=4),
        RankBelow(),
        RankMoved(number=1 << 40, ok=False, of_states=True),
        RankFault(reason="no memory"),
        Loading(stage="reading", memory_bytes=5),
    ],
)
def test_a_message_arrives_as_it_was_said(message: RankMessage) -> None:
    assert decode(*parts(encode(message))) == message


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"", b""),
        (b"[]", b""),
        (b"{}", b""),
        (b'{"blocks":{"num_blocks":4},"fault":{"reason":""}}', b""),
        (b'{"steps":{}}', b""),
        (b'{"blocks":{"num_blocks":-1}}', b""),
        (b'{"blocks":{"num_blocks":true}}', b""),
        (b'{"blocks":{"num_blocks":4.5}}', b""),
        (b'{"blocks":{}}', b""),
        (b'{"blocks":{"num_blocks":4,"more":1}}', b""),
        (b'{"start":{"rank":1,"folder":null}}', b""),
        (b'{"blocks":{"num_blocks":4}}', b"\0\0\0\0"),
    ],
)
def test_anything_else_is_refused(header: bytes, body: bytes) -> None:
    with pytest.raises(FrameError):
        decode(header, body)
