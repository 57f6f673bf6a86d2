"""Memory of the SQLite library: pages of files that its connections keep, and what runs."""

import _sqlite3
import ctypes
import functools
from collections.abc import Callable


def sqlite_bytes() -> int:
    """Bytes that all connections of this process hold; 0 where the library does not say."""
    used = memory_used()
    return 0 if used is None else used()


@functools.cache
def memory_used() -> Callable[[], int] | None:
    """The library's own account; None: it has none."""
    try:
        used = ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used
    except (OSError, AttributeError):
        return None
    used.restype = ctypes.c_int64
    return used
