"""Texts are kept small where that is quick, and come back as they were."""

import random
import zlib

import pytest

from sessions.durable.packing import MAX_DEFLATED_BYTES, deflate, pack, unpack


def text_of(size: int) -> bytes:
    return b'{"a":"' + b"x" * (size - 8) + b'"}'


@pytest.mark.parametrize("size", [8, 1000, MAX_DEFLATED_BYTES, MAX_DEFLATED_BYTES + 1, 1 << 20])
def test_a_text_comes_back_as_it_was(size: int) -> None:
    text = text_of(size)
    assert len(text) == size
    assert unpack(pack(text)) == text
    assert (pack(text) is text) == (size > MAX_DEFLATED_BYTES)


def test_nothing_stays_nothing_and_what_is_no_object_is_refused() -> None:
    assert unpack(pack(b"")) == b""
    with pytest.raises(ValueError, match="no JSON object"):
        pack(b"[]")


@pytest.mark.parametrize("level", range(10))
def test_nothing_deflated_looks_like_an_object(level: int) -> None:
    assert not zlib.compress(b"{}", level).startswith(b"{")
    assert not deflate(b"{}").startswith(b"{")


@pytest.mark.parametrize("size", [0, 1, 1500, 8192, 300_000])
def test_a_small_window_deflates_about_as_well(size: int) -> None:
    chance = random.Random(size)
    words = [chance.randbytes(6).hex().encode() for _ in range(100)]
    data = b" ".join(chance.choice(words) for _ in range(size // 10 + 1))[:size]
    packed = deflate(data)
    assert zlib.decompress(packed) == data
    assert len(packed) <= 1.2 * len(zlib.compress(data, level=1)) + 8
