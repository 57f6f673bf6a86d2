"""Arrays on their way to a device: pinned first, and nobody waits. ``meta`` stands for a GPU."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.upload import FixedPlaces, upload, upload_together
from runtime.model.batch import SequenceInput, StepBatch
from tests.support.streams import Timeline

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = torch.device("meta")
ON_THE_WAY = ("kernels", "runtime")
"""Packages whose steps put arrays on the device."""
MADE_ONCE = {
    "kernels/codes.py",
    "runtime/model/adapters.py",
    "runtime/model/checkpoint.py",
    "runtime/model/cut_weights.py",
    "runtime/model/gguf_weights.py",
    "runtime/model/random_weights.py",
    "runtime/model/rotary.py",
}
"""What these put there, they put there when something is loaded or first seen."""
REFERENCES = {"kernels/masked_sampling.py", "kernels/upload.py"}
"""The reference computes on a CPU and may wait."""


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """What is pinned and copied; nothing can be pinned without a GPU."""
    seen: list[tuple[str, object]] = []
    to = torch.Tensor.to

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned = tensor.clone()
        seen.append(("pinned", pinned.data_ptr()))
        return pinned

    def watched(tensor: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        if ELSEWHERE in args:
            seen.append(("copied", (tensor.data_ptr(), options.get("non_blocking", False))))
        return to(tensor, *args, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", watched)
    return seen


def test_on_a_cpu_the_array_itself_is_taken() -> None:
    array = np.arange(4)
    assert upload(array, torch.device("cpu")).data_ptr() == array.ctypes.data
    tensor = torch.arange(3, device=ELSEWHERE)
    assert upload(tensor, ELSEWHERE) is tensor


def test_arrays_of_a_step_go_there_in_one_copy_and_begin_where_kernels_like(
    copies: list[tuple[str, object]],
) -> None:
    arrays = [np.arange(3), np.arange(0), np.arange(9), np.arange(6).reshape(2, 3)]
    here = upload_together(arrays, torch.device("cpu"))
    assert all(np.shares_memory(a.numpy(), b) for a, b in zip(here, arrays, strict=True) if b.size)
    there = upload_together(arrays, ELSEWHERE)
    assert [kind for kind, _ in copies] == ["pinned", "copied"]
    assert [tuple(part.shape) for part in there] == [part.shape for part in arrays]
    assert [part.storage_offset() for part in there] == [0, 8, 8, 24]


def test_elsewhere_it_goes_by_pinned_memory_and_the_host_does_not_wait(
    copies: list[tuple[str, object]],
) -> None:
    assert upload(np.arange(4, dtype=np.int32), ELSEWHERE).dtype == torch.int32
    assert upload(torch.arange(4), ELSEWHERE).device == ELSEWHERE
    (first, place), (second, (source, waits_not)) = copies[:2]  # type: ignore[misc]
    assert (first, second) == ("pinned", "copied")
    assert source == place
    assert waits_not is True
    assert len(copies) == 4


def test_a_steps_layout_goes_there_without_a_wait(copies: list[tuple[str, object]]) -> None:
    table = np.arange(64, dtype=np.int32)
    parts = [
        SequenceInput(
            tokens=np.zeros(1, dtype=np.int32), start=1000 + n, block_table=table, num_logits=1
        )
        for n in range(2)
    ]
    batch = StepBatch.build(parts, 16)
    shared = batch.shared_prefixes()
    assert shared is not None
    assert shared.to(ELSEWHERE).members.device == ELSEWHERE
    assert batch.layout(ELSEWHERE).query_starts.dtype == torch.int32
    kinds = [kind for kind, _ in copies]
    assert kinds == ["pinned", "copied"] * 6
    assert all(detail[1] for kind, detail in copies if kind == "copied")  # type: ignore[index]


def test_nothing_has_no_memory_to_pin(copies: list[tuple[str, object]]) -> None:
    assert upload(np.empty((0, 3), dtype=np.int64), ELSEWHERE).shape == (0, 3)
    assert not copies


def test_nothing_that_a_step_does_copies_to_the_device_in_another_way() -> None:
    """Calls of ``to`` with a device; ``SharedPrefixes.to`` is such a way itself."""
    offenders = []
    for package in ON_THE_WAY:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name in MADE_ONCE | REFERENCES:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                call = ast.unparse(node)
                devices = [a for a in node.args if "device" in ast.unparse(a)]
                if node.func.attr == "to" and devices and call != "shared.to(device)":
                    offenders.append(f"{name}: {call}")
    assert offenders == []


def arrays(seed: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    return [
        torch.from_numpy(rng.integers(0, 99, 5)),
        torch.from_numpy(rng.integers(0, 99, (3, 7), dtype=np.int32)),
        torch.empty(0, dtype=torch.int64),
        torch.from_numpy(rng.integers(0, 99, 1)),
    ]


def test_arrays_stand_in_the_same_places_each_time() -> None:
    places = FixedPlaces(arrays(0), torch.device("cpu"))
    at = [place.data_ptr() for place in places.tensors]
    for seed in (0, 1):
        places.write(arrays(seed))
        for place, array in zip(places.tensors, arrays(seed), strict=True):
            assert torch.equal(place, array)
            assert place.dtype == array.dtype
    assert [place.data_ptr() for place in places.tensors] == at
    assert all(place % 8 == 0 for place in at)


def test_arrays_are_not_written_over_while_they_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step begun ahead stands behind the one before in the stream, and so do its arrays."""
    timeline = Timeline()
    timeline.install(monkeypatch)
    places = FixedPlaces(arrays(0), ELSEWHERE)
    with timeline:
        places.write(arrays(0))
        first = len(timeline.entries)
        places.write(arrays(1))
    copies = timeline.places("copy_")
    assert len(copies) == 2 * (len(arrays(0)) + 1)
    (waited,) = [at for at in timeline.places("host waits") if at >= first]
    assert waited < min(at for at in copies if at >= first)
    sent = max(at for at in copies if at < first)
    assert timeline.before(sent, timeline.entries[waited][2])
