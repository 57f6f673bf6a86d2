"""Safetensors headers: what is valid is read as the library wrote it, the rest is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from runtime.model.config import LoadError
from runtime.model.safetensors_file import SafetensorsFile


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.bool]
)
def test_tensors_come_back_as_they_were_written(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(12).reshape(3, 4).to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.empty(0, 3).to(dtype),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert sorted(file.names()) == ["a", "empty", "scalar"]
    assert "a" in file
    assert "b" not in file
    for name, tensor in tensors.items():
        assert file.shape(name) == tuple(tensor.shape)
        assert torch.equal(file.tensor(name), tensor)
        assert file.tensor(name).dtype == dtype


def test_a_tensor_at_an_odd_offset_is_read(tmp_path: Path) -> None:
    values = torch.tensor([1.5, -2.0])
    header = {"byte": entry(0, 1, [1], "U8"), "x": entry(1, 9, [2])}
    data = b"\x07" + values.numpy().tobytes()
    text = json.dumps(header).encode()
    padded = text + b" " * (-len(text) % 8)
    assert torch.equal(SafetensorsFile(write(tmp_path / "x", padded, data)).tensor("x"), values)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ([], b"", "not a JSON object"),
        (b"{", b"", "not valid JSON"),
        (b"\xff\xff", b"", "not valid JSON"),
        (b'{"a": {}, "a": {}}', b"", "a name appears twice"),
        ({"x": 3}, b"", "'x': its entry is not an object"),
        ({"x": entry(0, 4, [1], "F31")}, bytes(4), "dtype 'F31' is not known"),
        ({"x": {**entry(0, 4, [1]), "dtype": None}}, bytes(4), "dtype None is not known"),
        ({"x": entry(0, 4, [-1])}, bytes(4), r"shape \[-1\] is not a list of sizes"),
        ({"x": {**entry(0, 4, [1]), "shape": "1"}}, bytes(4), "shape '1' is not a list"),
        ({"x": entry(0, 4, [True])}, bytes(4), "is not a list of sizes"),
        ({"x": {**entry(0, 4, [1]), "data_offsets": [0]}}, bytes(4), "are not two offsets"),
        ({"x": entry(-4, 0, [1])}, bytes(4), "are not two offsets"),
        ({"x": entry(0, 8, [1])}, bytes(8), "takes 4 bytes, its range has 8"),
        ({"x": entry(4, 0, [1])}, bytes(4), "its range has -4"),
        ({"x": entry(0, 1 << 40, [1 << 38])}, bytes(4), "truncated: tensors need"),
        ({"x": entry(0, 4, [1]), "y": entry(2, 6, [1])}, bytes(6), "overlap or leave a gap"),
        ({"x": entry(0, 4, [1]), "y": entry(8, 12, [1])}, bytes(12), "overlap or leave a gap"),
        ({"x": entry(0, 4, [1])}, bytes(3), "truncated: tensors need 4 bytes"),
        ({"x": entry(0, 4, [1])}, bytes(5), "1 bytes of data belong to no tensor"),
    ],
)
def test_a_damaged_header_is_refused_by_name(
    header: Any, data: bytes, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(LoadError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)


def small_objects() -> bytes:
    return b'{"a":[' + b",".join([b"{}"] * 1_300_000) + b"]}"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry(0, 4, [1] * 9)}, "tensor 'a': its shape has 9 sizes, at most 8 are read"),
        ({"a": entry(0, 4, [(1 << 62) - 1] * 80_000)}, "its shape has 80000 sizes"),
        ({"a": entry(0, 4, ["x" * 10**6])}, r"shape \['x{198}\.\.\. is not a list of sizes"),
        (small_objects(), "more than 1200000 values"),
        ({f"t{n}": entry(0, 0, [0]) for n in range(65_537)}, "65537 tensors, at most 65536"),
        (b"[" * 100_000, "nested deeper than 64 levels"),
        (b" " * (17 << 20), "its header has 17825792 bytes, 16777216 are read"),
    ],
)
def test_a_header_that_would_cost_much_is_refused_before_it_does(
    header: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        SafetensorsFile(write(tmp_path / "big.safetensors", header, b"\0" * 4))
    assert len(str(caught.value)) < 500


def test_a_pipe_in_the_place_of_weights_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(LoadError, match="x: not a regular file"):
        SafetensorsFile(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"\x01\x02", (1 << 62).to_bytes(8, "little") + b"{}"])
def test_a_file_too_short_for_its_header_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(LoadError, match="truncated"):
        SafetensorsFile(tmp_path / "x")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"gone.safetensors: No such file"):
        SafetensorsFile(tmp_path / "gone.safetensors")
