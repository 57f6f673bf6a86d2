"""A process has its heap in large pages, unless its user or its system says otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.heap_pages import with_large_pages

GLIBC = "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {})
needs_glibc = pytest.mark.skipif(not GLIBC, reason="the C library has no large pages to ask for")


@pytest.fixture
def offered(tmp_path: Path) -> Path:
    return said(tmp_path, "always [madvise] never\n")


def said(folder: Path, modes: str) -> Path:
    path = folder / "enabled"
    path.write_text(modes)
    return path


@needs_glibc
def test_variables_are_added_to_those_that_are_there(offered: Path) -> None:
    assert with_large_pages({"HOME": "/h"}, offered) == {
        "HOME": "/h",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "PYTHONMALLOC": "malloc",
    }


@needs_glibc
def test_other_tunables_stay_as_they_are(offered: Path) -> None:
    given = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}
    tunables = with_large_pages(given, offered)["GLIBC_TUNABLES"]
    assert tunables == "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"


@pytest.mark.parametrize(
    "given",
    [
        {"PYTHONMALLOC": "debug"},
        {"PYTHONMALLOC": ""},
        {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"},
        {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=2"},
    ],
)
def test_who_says_how_memory_is_allocated_is_left_alone(
    given: dict[str, str], offered: Path
) -> None:
    assert with_large_pages(given, offered) == given


@needs_glibc
def test_what_was_added_is_not_added_again(offered: Path) -> None:
    once = with_large_pages({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}, offered)
    assert with_large_pages(once, offered) == once


def test_without_large_pages_nothing_is_added(tmp_path: Path) -> None:
    assert with_large_pages({}, said(tmp_path, "always madvise [never]\n")) == {}
    assert with_large_pages({}, tmp_path / "missing") == {}
    (tmp_path / "damaged").write_bytes(b"\xff\xfe")
    assert with_large_pages({}, tmp_path / "damaged") == {}


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the pages of a process")
def test_a_process_that_is_told_so_has_its_objects_in_large_pages() -> None:
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    environment = with_large_pages({}, modes)
    if "[madvise]" not in modes.read_text() or "PYTHONMALLOC" not in environment:
        pytest.skip("large pages are not to be asked for here")
    program = (
        "kept = [object() for _ in range(2_000_000)]\n"
        "lines = open('/proc/self/smaps_rollup')\n"
        "print(next(l.split()[1] for l in lines if l.startswith('AnonHugePages')))\n"
    )
    large_kib = [
        int(
            subprocess.run(
                [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
            ).stdout
        )
        for env in (environment, {})
    ]
    assert large_kib[0] > 32_000
    assert large_kib[1] < large_kib[0]
