"""How the compiled kernels share their work: the same bits whoever helps, and nobody waited for."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.native_library import NativeLibrary, compiled_library, native_library, own_threads
from kernels.tiled_matrix import TiledMatrix

LIBRARY = native_library(torch.bfloat16)
ROWS = (1, 8, 40, 300)

pytestmark = pytest.mark.skipif(
    LIBRARY is None or not LIBRARY.has_linear, reason="no compiled products here"
)


@pytest.fixture(autouse=True)
def theirs_again() -> Iterator[None]:
    yield
    own_threads(None)


def products(matrix: TiledMatrix) -> list[Tensor]:
    """Of few rows and of many, and a small operation worth more threads than one."""
    assert isinstance(LIBRARY, NativeLibrary)
    made = []
    for rows in ROWS:
        x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(rows)).bfloat16()
        made += [LIBRARY.linear(x, matrix.weights), LIBRARY.silu_mul(x.repeat(1, 8))]
    return made


@pytest.fixture(params=[16, 8, 4], ids="{} bits".format)
def matrix(request: pytest.FixtureRequest) -> TiledMatrix:
    weight = torch.randn(1000, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
    return TiledMatrix(weight, bits=request.param, group=32)


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(map(torch.equal, left, right))


@pytest.mark.samples(3)
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_own_threads_say_what_one_says(threads: int, matrix: TiledMatrix) -> None:
    alone = products(matrix)
    own_threads(threads)
    assert all(same(alone, products(matrix)) for _ in range(20))


def test_fewer_threads_than_before_leave_the_others_out(matrix: TiledMatrix) -> None:
    alone = products(matrix)
    for threads in (4, 1, 3, None, 2):
        own_threads(threads)
        assert same(alone, products(matrix))


@pytest.mark.tail
def test_who_finds_the_team_at_work_works_alone(matrix: TiledMatrix) -> None:
    alone = products(matrix)
    own_threads(3)
    right: list[bool] = []

    def work() -> None:
        right.extend(same(alone, products(matrix)) for _ in range(30))

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert right == [True] * 120


def asleep(thread: str) -> bool:
    text = Path(f"/proc/self/task/{thread}/stat").read_text()
    return text.rpartition(")")[2].split()[0] == "S"


def test_those_that_sleep_are_woken_and_are_no_longer_busy(matrix: TiledMatrix) -> None:
    alone = products(matrix)
    own_threads(2)
    before = set(os.listdir("/proc/self/task"))
    products(matrix)
    others = set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}
    assert others >= before - {str(threading.get_native_id())}
    pause = threading.Event()
    assert any(all(map(asleep, others)) or pause.wait(0.01) for _ in range(1000)), "all must rest"
    assert same(alone, products(matrix))


def test_a_child_that_has_none_of_the_threads_waits_for_nobody(matrix: TiledMatrix) -> None:
    alone = products(matrix)
    own_threads(4)
    products(matrix)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends who waits
        os._exit(0 if same(alone, products(matrix)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_threads_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="threads is 0, at least 1"):
        own_threads(0)


def test_what_is_not_compiled_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_library.cache_clear()
    monkeypatch.setenv("KEEPWARM_NATIVE", "0")
    try:
        own_threads(None)
        assert compiled_library.cache_info().currsize == 0, "nothing was loaded to undo nothing"
        own_threads(2)
    finally:
        compiled_library.cache_clear()
