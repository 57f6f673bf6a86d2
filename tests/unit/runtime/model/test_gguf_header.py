"""GGUF headers: read as the format says, or refused in one line, soon and in little memory."""

import os
import random
import resource
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import LoadError
from runtime.model.gguf_header import read_gguf_header

CASES = int(os.environ.get("KEEPWARM_CONFIG_CASES", "10000")) // 5
SEED = int(os.environ.get("KEEPWARM_CONFIG_SEED", "0"))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        body = b"".join(text(each) for each in value)
        return text(name) + struct.pack("<IIQ", 9, 8, len(value)) + body
    return text(name) + struct.pack("<II", 4, value)


def tensor(name: str, sizes: list[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def whole(
    entries: list[bytes] | None = None, tensors: list[bytes] | None = None, data: int = 320
) -> bytes:
    if entries is None:
        entries = [entry("general.architecture", "llama"), entry("a", 7), entry("b", ["x", "yz"])]
    if tensors is None:
        tensors = [tensor("t", [32, 2], 8, 0), tensor("u", [4], 0, 96)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    head += b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def read(tmp_path: Path, content: bytes):
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    return read_gguf_header(path)


def test_metadata_and_tensors_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, whole())
    assert found.metadata == {"general.architecture": "llama", "a": 7, "b": ["x", "yz"]}
    assert {name: (each.kind, each.shape) for name, each in found.tensors.items()} == {
        "t": ("Q8_0", (2, 32)),
        "u": ("F32", (4,)),
    }
    assert found.tensors["u"].begin - found.tensors["t"].begin == 96
    assert sum(each.num_bytes for each in found.tensors.values()) == 2 * 34 + 16


def long_string(length: int) -> bytes:
    return text("a") + struct.pack("<IQ", 8, length)


def array(count: int, kind: int = 8) -> bytes:
    return text("a") + struct.pack("<IIQ", 9, kind, count)


def header(version: int = 3, tensors: int = 0, entries: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


WRONG = {
    "nothing": (b"", "hold no header"),
    "no magic": (b"GGML" + bytes(60), "not a GGUF file"),
    "another version": (header(version=1), "version 1 of GGUF"),
    "the other byte order": (header(version=3 << 24), "version 50331648"),
    "a string of 4 GB": (whole([long_string(1 << 32)]), "has 4294967296 bytes"),
    "a string that overflows": (whole([long_string((1 << 64) - 1)]), "has 18446744073709551615"),
    "a string beyond the file": (whole([long_string(3 << 20)]), "truncated"),
    "metadata beyond counting": (header(entries=(1 << 64) - 1), "18446744073709551615 of"),
    "tensors beyond counting": (header(tensors=1 << 40), "1099511627776 of"),
    "an array beyond counting": (whole([array(1 << 60)]), "1152921504606846976 of"),
    "an array beyond the file": (whole([array(1 << 20, kind=4)]), "truncated"),
    "arrays in arrays": (whole([array(4, kind=9)]), "a value of type 9"),
    "a type that is none": (whole([text("a") + struct.pack("<I", 77)]), "a value of type 77"),
    "no UTF-8": (whole([long_string(2) + b"\xff\xfe"]), "no UTF-8"),
    "a name twice": (whole([entry("a", 1), entry("a", 2)]), "metadata 'a' is there twice"),
    "a tensor twice": (whole(tensors=[tensor("t", [4], 0, 0)] * 2), "tensor 't' is there twice"),
    "no alignment": (whole([entry("general.alignment", 0)]), "general.alignment is 0"),
    "a rank of 5": (whole(tensors=[tensor("t", [1] * 5, 0, 0)]), "has 5 sizes"),
    "a kind that is none": (whole(tensors=[tensor("t", [256], 99, 0)]), "is of type 99"),
    "a part of a block": (whole(tensors=[tensor("t", [33, 2], 8, 0)]), "a multiple of 32"),
    "a size of 0": (whole(tensors=[tensor("t", [0], 0, 0)]), "has sizes [0]"),
    "sizes that overflow": (whole(tensors=[tensor("t", [1 << 31] * 4, 0, 0)]), "truncated"),
    "an offset that overflows": (whole(tensors=[tensor("t", [4], 0, (1 << 64) - 32)]), "truncated"),
    "an offset between": (whole(tensors=[tensor("t", [4], 0, 8)]), "not at a multiple of 32"),
    "one over another": (
        whole(tensors=[tensor("t", [64], 0, 0), tensor("u", [4], 0, 32)]),
        "within another",
    ),
    "data that ends too early": (whole(data=64), "truncated: tensor"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_told_in_one_line(wrong: str, tmp_path: Path) -> None:
    content, message = WRONG[wrong]
    with pytest.raises(LoadError) as caught:
        read(tmp_path, content)
    told = str(caught.value)
    assert told.startswith(str(tmp_path / "a.gguf"))
    assert message in told
    assert "\n" not in told


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    os.mkfifo(path)
    with pytest.raises(LoadError, match="not a regular file"):
        read_gguf_header(path)


@pytest.mark.tail
def test_spoiled_bytes_are_read_or_refused(tmp_path: Path) -> None:
    draw, right = random.Random(SEED), whole()
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for case in range(CASES):
        content = bytearray(right)
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(content))
            content[place : place + draw.choice([1, 1, 4, 8])] = draw.choice(
                [b"\xff", bytes([draw.randrange(256)]), b"\xff" * 8, bytes(8), b"\x00\x00\x00\x01"]
            )
        if draw.random() < 0.2:
            del content[draw.randrange(len(content)) :]
        started = time.process_time()
        try:
            read(tmp_path, bytes(content))
        except LoadError as error:
            refused += 1
            told = str(error)
            assert told.startswith(str(tmp_path)), case
            assert len(told.splitlines()) == 1, (case, told)
            assert len(told) < 600 + len(str(tmp_path)), case
        assert time.process_time() - started < 1, case
    assert refused > CASES // 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began < 100_000
