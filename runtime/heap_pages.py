"""The heap of a Python process in large pages, where the system gives them to who asks.

A server that waits for its clients' tools touches its heap a few times a second. On a virtual
machine whose host takes pages away that nobody touches, each page of 4 KiB then costs
microseconds again at the next turn, thousands of them before its first token; one of 2 MiB costs
as much as one of 4 KiB (docs/log/kernels.md). The C library asks for large pages if it is told so
before a process begins, and Python's own allocator never does, so its small objects go to the C
library as well.
"""

import os
from collections.abc import Mapping
from pathlib import Path

_ALLOCATOR = "PYTHONMALLOC"
_TUNABLES = "GLIBC_TUNABLES"
_LARGE = "glibc.malloc.hugetlb"
_MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def with_large_pages(environment: Mapping[str, str], modes: Path = _MODES) -> dict[str, str]:
    """Variables with which a Python program has its heap in large pages.

    Args:
        environment: those that it has otherwise. They are returned unchanged where they say how
            memory is to be allocated, and where the system has no large pages.
        modes: the file in which Linux says which large pages there are.
    """
    given = dict(environment)
    if _ALLOCATOR in given or _LARGE in given.get(_TUNABLES, "") or not _offered(modes):
        return given
    tunables = [given[_TUNABLES]] if given.get(_TUNABLES) else []
    return given | {_TUNABLES: ":".join([*tunables, f"{_LARGE}=1"]), _ALLOCATOR: "malloc"}


def _offered(modes: Path) -> bool:
    """Whether there are large pages to be asked for, and a C library that asks."""
    try:
        asks = (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
        return asks and "[never]" not in modes.read_text(encoding="utf-8")
    except (OSError, ValueError, AttributeError):
        return False
