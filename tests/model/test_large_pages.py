"""Host memory in large pages."""

import gc
import mmap
import random
import weakref

import pytest
import torch

from kernels import large_pages as module
from kernels.large_pages import PAGE_BYTES, Slabs, large_pages


@pytest.mark.parametrize("num_bytes", [1, 4096, PAGE_BYTES, PAGE_BYTES + 1])
def test_memory_is_zero_aligned_and_as_long_as_asked(num_bytes: int) -> None:
    memory = large_pages(num_bytes)
    assert memory.shape == (num_bytes,)
    assert memory.data_ptr() % PAGE_BYTES == 0 or not hasattr(mmap, "MADV_HUGEPAGE")
    assert not memory.any()
    memory.fill_(7)
    assert (memory == 7).all()


def test_where_there_are_none_memory_is_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert not large_pages(5000).any()


def test_parts_of_slabs_are_apart_and_aligned() -> None:
    slabs = Slabs()
    parts = [slabs.take(size) for size in (1, 100, 64, 70_000, module.SLAB_BYTES, 3)]
    for number, part in enumerate(parts):
        assert part.data_ptr() % module.ALIGNMENT == 0
        part.fill_(number + 1)
    for number, part in enumerate(parts):
        assert (part == number + 1).all()
    assert [len(part) for part in parts] == [1, 100, 64, 70_000, module.SLAB_BYTES, 3]


def test_a_slab_that_is_full_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLAB_BYTES", 256)
    slabs = Slabs()
    parts = [slabs.take(100) for _ in range(5)]
    for number, part in enumerate(parts):
        part.fill_(number)
    assert [int(part.sum()) for part in parts] == [100 * number for number in range(5)]


@pytest.mark.tail
def test_a_slab_goes_with_the_last_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[object]] = []

    def counted(num_bytes: int) -> torch.Tensor:
        memory = bytearray(num_bytes)
        view = memoryview(memory)
        made.append(weakref.ref(view))
        return torch.frombuffer(view, dtype=torch.uint8)

    monkeypatch.setattr(module, "large_pages", counted)
    monkeypatch.setattr(module, "SLAB_BYTES", 256)
    slabs = Slabs()
    first, second = slabs.take(100), slabs.take(100)
    slabs.take(100)  # from the next one
    del first
    gc.collect()
    assert made[0]() is not None
    del second
    gc.collect()
    assert made[0]() is None


@pytest.mark.parametrize("page", [4096, PAGE_BYTES])
@pytest.mark.parametrize("seed", range(20))
def test_touched_memory_is_that_of_all_pages_that_any_strip_reaches(
    page: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_are_large", lambda: page == PAGE_BYTES)
    rng = random.Random(seed)
    strips, stride = rng.randrange(1, 9), rng.randrange(1, 5 * page)
    used = rng.randrange(0, stride + 1)
    pages = {
        (strip * stride + place) // page
        for strip in range(strips)
        for place in {*range(0, used, page), *({used - 1} if used else ())}
    }
    assert module.touched_bytes(strips, stride, used) == len(pages) * page
