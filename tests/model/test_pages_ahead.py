"""Memory that is there before it is written."""

import mmap
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.large_pages import PAGE_BYTES
from runtime.model import pages_ahead
from runtime.model.pages_ahead import PagesAhead

MIB = 1 << 20
LAYERS, BLOCKS, BLOCK_BYTES = 4, 2048, 16 * 1024


def blocks_of(megabytes: int) -> Tensor:
    """Untouched memory of the system, [layers, 2, blocks, block's bytes]."""
    memory = mmap.mmap(-1, megabytes * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).view(LAYERS, 2, -1, BLOCK_BYTES)


def resident_mib(blocks: Tensor) -> float:
    """What of ``blocks`` is in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        low, _, high = line.split(maxsplit=1)[0].partition("-")
        if high and int(low, 16) <= blocks.data_ptr() < int(high, 16):
            return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Rss"))
    raise AssertionError("no such memory")


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_ahead, "AHEAD_BYTES", 32 * MIB)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is provided on Linux only")
@pytest.mark.usefixtures("small_steps")
def test_as_much_as_was_said_is_there_and_more_follows_what_is_used() -> None:
    blocks = blocks_of(256)
    pages = PagesAhead(blocks)
    pages.wait()
    if not pages.works:
        pytest.skip("this kernel cannot provide memory (Linux 5.14)")
    first = resident_mib(blocks)
    assert 30 < first < 34
    pages.reach(10)
    pages.wait()
    assert resident_mib(blocks) == first
    pages.reach(BLOCKS // 2)
    pages.wait()
    assert resident_mib(blocks) > 128
    pages.reach(BLOCKS - 1)
    pages.wait()
    assert resident_mib(blocks) == 256


class Rests:
    """Stands in for the event of being in a hurry; nobody rests."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.hurry = False

    def set(self) -> None:
        self.hurry = True

    def clear(self) -> None:
        self.hurry = False

    def wait(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.usefixtures("small_steps")
def test_pages_are_asked_for_one_by_one_with_rests_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = PagesAhead(blocks_of(256))
    pages.wait()
    if not pages.works:
        pytest.skip("this kernel cannot provide memory (Linux 5.14)")
    rests = Rests()
    monkeypatch.setattr(pages, "_hurry", rests)
    first = 32 * MIB // BLOCK_BYTES // LAYERS // 2
    step = first // 2
    pages.reach(first - step)
    assert pages._thread is not None
    pages._thread.join()
    assert not rests.hurry
    assert len(rests.seconds) >= 2 * LAYERS * step * BLOCK_BYTES // PAGE_BYTES
    assert min(rests.seconds) > 0


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(("steps_left", "hurry"), [(0.5, False), (0.25, True), (0, True)])
def test_steps_that_come_near_to_what_is_provided_end_the_rests(
    steps_left: float, *, hurry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = PagesAhead(blocks_of(256))
    pages.wait()
    if not pages.works:
        pytest.skip("this kernel cannot provide memory (Linux 5.14)")
    resting, rests = threading.Event(), Rests()
    monkeypatch.setattr(rests, "wait", lambda _: resting.wait())
    monkeypatch.setattr(pages, "_hurry", rests)
    first = 32 * MIB // BLOCK_BYTES // LAYERS // 2
    step = first // 2
    pages.reach(first - step)
    pages.reach(first - int(steps_left * step))
    assert rests.hurry is hurry
    resting.set()
    pages.wait()


@pytest.mark.usefixtures("small_steps")
def test_what_was_written_stays() -> None:
    blocks = blocks_of(64)
    blocks[:, :, ::7] = 3
    pages = PagesAhead(blocks)
    for block in range(blocks.shape[2]):
        pages.reach(block)
        blocks[:, :, block, 5] = block % 251
    pages.wait()
    written = torch.arange(blocks.shape[2]) % 251
    assert (blocks[:, :, :, 5] == written).all()
    assert (blocks[:, :, ::7, 6] == 3).all()
    assert not blocks[:, :, 1::7, 6].any()


@pytest.mark.usefixtures("small_steps")
def test_a_system_that_cannot_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_ahead, "_POPULATE_WRITE", 9999)
    pages = PagesAhead(blocks_of(64))
    pages.wait()
    assert not pages.works
    asked: list[object] = []
    monkeypatch.setattr(pages, "_provide", lambda *ids: asked.append(ids))
    pages.reach(pages_ahead.AHEAD_BYTES // BLOCK_BYTES // LAYERS)
    pages.wait()
    assert not asked
