"""Free memory in the heap."""

import os
import subprocess
import sys

import pytest

from runtime import heap_free
from runtime.heap_free import heap_free_bytes
from tests.support.architecture import ROOT

PROGRAM = """
from runtime.heap_free import heap_free_bytes
pieces = [bytes(40_000) for _ in range(1000)]
before = heap_free_bytes()
del pieces[::2]
print(heap_free_bytes() - before)
"""


GIVEN_BACK = """
from pathlib import Path
from runtime.heap_free import give_back_heap

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096

pieces = [b"x" * 40_000 for _ in range(1000)]
del pieces[::2]
before = resident()
give_back_heap()
print(before - resident())
"""


@pytest.mark.skipif(heap_free.libc_account() is None, reason="the C library does not say")
def test_what_is_let_go_of_between_what_stays_is_free() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONMALLOC": "malloc"},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert 0.9 * 20_000_000 <= int(ran.stdout) <= 1.2 * 20_000_000


@pytest.mark.skipif(heap_free.libc_account() is None, reason="not glibc")
def test_what_is_free_between_what_stays_goes_back_to_the_system() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", GIVEN_BACK],
        env=os.environ | {"PYTHONMALLOC": "malloc"},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(ran.stdout) >= 0.8 * 500 * 36_864, "but for the pages at each piece's ends"


@pytest.mark.skipif(heap_free.pool_report() is None, reason="not CPython with glibc")
@pytest.mark.parametrize(
    "let_go",
    [
        "del pieces[::2]",  # from each pool a half
        "pieces[:] = [each for n, each in enumerate(pieces) if n % 2000 < 1000]",  # whole pools
    ],
)
def test_pythons_own_pools_count_too(let_go: str) -> None:
    program = PROGRAM.replace(
        "bytes(40_000) for _ in range(1000)", "bytes(100) for _ in range(200_000)"
    ).replace("del pieces[::2]", let_go)
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={name: text for name, text in os.environ.items() if name != "PYTHONMALLOC"},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert 0.9 * 14_400_000 <= int(ran.stdout) <= 1.2 * 14_400_000, "100,000 of 144 bytes"


def test_a_c_library_that_does_not_say_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_free, "libc_account", lambda: None)
    monkeypatch.setattr(heap_free, "pool_report", lambda: None)
    assert heap_free_bytes() == 0
