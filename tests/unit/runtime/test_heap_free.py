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


def test_a_c_library_that_does_not_say_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_free, "libc_account", lambda: None)
    assert heap_free_bytes() == 0
