"""Memory that is there before it is written."""

import mmap
import sys
import threading
from collections.abc import Callable
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
def test_groups_are_provided_together() -> None:
    blocks = blocks_of(256)
    pages = PagesAhead([blocks[:3], blocks[3:]])
    pages.wait()
    if not pages.works:
        pytest.skip("this kernel cannot provide memory (Linux 5.14)")
    assert 30 < resident_mib(blocks) < 34
    pages.reach(BLOCKS - 1)
    pages.wait()
    assert resident_mib(blocks) == 256


@pytest.mark.skipif(sys.platform != "linux", reason="memory is provided on Linux only")
@pytest.mark.usefixtures("small_steps")
def test_as_much_as_was_said_is_there_and_more_follows_what_is_used() -> None:
    blocks = blocks_of(256)
    pages = PagesAhead([blocks])
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
    pages = PagesAhead([blocks_of(256)])
    pages.wait()
    if not pages.works:
        pytest.skip("this kernel cannot provide memory (Linux 5.14)")
    rests = Rests()
    monkeypatch.setattr(pages, "hurry", rests)
    first = 32 * MIB // BLOCK_BYTES // LAYERS // 2
    step = first // 2
    pages.reach(first - step)
    assert pages.provider is not None
    pages.provider.join()
    assert not rests.hurry
    assert len(rests.seconds) >= 2 * LAYERS * step * BLOCK_BYTES // PAGE_BYTES
    assert min(rests.seconds) > 0


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(("steps_left", "hurry"), [(0.5, False), (0.25, True), (0, True)])
def test_steps_that_come_near_to_what_is_provided_end_the_rests(
    steps_left: float, *, hurry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = PagesAhead([blocks_of(256)])
    pages.wait()
    if not pages.works:
        pytest.skip("this kernel cannot provide memory (Linux 5.14)")
    resting, rests = threading.Event(), Rests()
    monkeypatch.setattr(rests, "wait", lambda _: resting.wait())
    monkeypatch.setattr(pages, "hurry", rests)
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
    pages = PagesAhead([blocks])
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
    pages = PagesAhead([blocks_of(64)])
    pages.wait()
    assert not pages.works
    asked: list[object] = []
    monkeypatch.setattr(pages, "_provide", lambda *ids: asked.append(ids))
    pages.reach(pages_ahead.AHEAD_BYTES // BLOCK_BYTES // LAYERS)
    pages.wait()
    assert not asked


class Slices:
    """Stands in for providing: the slices that were asked for, and what happens meanwhile."""

    def __init__(self, pages: PagesAhead, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int]] = []
        self.resting: list[bool] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self._pages = pages
        monkeypatch.setattr(pages, "_provide", self.provide)

    def provide(self, low: int, high: int) -> None:
        self.resting.append(self._pages.resting)
        self.asked.append((low, high))
        self.meanwhile()

    def wait(self) -> None:
        """Until nothing is provided any more; nothing is hurried by it."""
        assert self._pages.provider is not None
        self._pages.provider.join()


@pytest.fixture
def at_rest(small_steps: None, monkeypatch: pytest.MonkeyPatch) -> tuple[PagesAhead, Slices]:
    """Pages whose first 32 MiB, 256 blocks, are there; 80 MiB at rest, in slices of 16."""
    monkeypatch.setattr(pages_ahead, "AT_REST_BYTES", 80 * MIB)
    monkeypatch.setattr(pages_ahead, "_SLICE_BYTES", 16 * MIB)
    pages = PagesAhead([blocks_of(256)])
    pages.wait()
    pages.works = True
    return pages, Slices(pages, monkeypatch)


def test_more_is_provided_while_no_step_is_computed(at_rest: tuple[PagesAhead, Slices]) -> None:
    pages, slices = at_rest
    pages.rest()
    slices.wait()
    assert slices.asked == [(256, 384), (384, 512), (512, 640)]
    assert all(slices.resting)
    pages.rest()  # all is there
    assert len(slices.asked) == 3
    pages.reach(300)  # within what is there: nothing has to be provided beside steps
    pages.reach(200)  # blocks come in any order
    assert len(slices.asked) == 3
    pages.rest()
    slices.wait()
    assert slices.asked[3:] == [(640, 768), (768, 896), (896, 940)]


def test_a_step_ends_what_is_provided_at_rest(at_rest: tuple[PagesAhead, Slices]) -> None:
    pages, slices = at_rest
    slices.meanwhile = lambda: pages.reach(10)
    pages.rest()
    slices.wait()
    assert slices.asked == [(256, 384)]
    assert not pages.hurry.is_set()
    slices.meanwhile = lambda: pages.reach(370)
    pages.rest()
    slices.wait()
    assert slices.asked == [(256, 384), (384, 512)]
    assert pages.hurry.is_set()  # of 384 blocks that are there


def test_waiting_ends_what_is_provided_at_rest(at_rest: tuple[PagesAhead, Slices]) -> None:
    pages, slices = at_rest
    waited = threading.Event()
    slices.meanwhile = lambda: waited.wait(20)
    pages.rest()
    waiting = threading.Thread(target=pages.wait)
    waiting.start()
    while pages.resting:
        pass
    waited.set()
    waiting.join()
    assert slices.asked == [(256, 384)]


def test_no_more_is_provided_at_rest_than_there_is(at_rest: tuple[PagesAhead, Slices]) -> None:
    pages, slices = at_rest
    pages.reach(BLOCKS - 1)
    slices.wait()
    assert slices.asked == [(256, BLOCKS)]
    pages.rest()
    assert len(slices.asked) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="memory is provided on Linux only")
@pytest.mark.usefixtures("small_steps")
def test_at_rest_nobody_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_ahead, "AT_REST_BYTES", 80 * MIB)
    monkeypatch.setattr(pages_ahead, "_SLICE_BYTES", 16 * MIB)
    blocks = blocks_of(256)
    pages = PagesAhead([blocks])
    pages.wait()
    if not pages.works:
        pytest.skip("this kernel cannot provide memory (Linux 5.14)")
    rests = Rests()
    monkeypatch.setattr(pages, "hurry", rests)
    pages.rest()
    assert pages.provider is not None
    pages.provider.join()
    assert not rests.seconds
    assert 78 < resident_mib(blocks) < 84
