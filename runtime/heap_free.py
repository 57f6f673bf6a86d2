"""Memory that a process has let go of and its allocators keep: room for what it allocates next.

A step's tensors are let go of at its end, but what lasts was allocated between them, so that the
heap cannot shrink; so it is with Python's objects and the pools that they lie in. The system counts
this as used.
"""

import contextlib
import ctypes
import functools
import re

_UNUSED = re.compile(rb"(?:bytes in available blocks|unused pools \* \d+ bytes) *= *([\d,]+)")
"""In CPython's report: room in pools that hold objects, and pools that hold none any more."""
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Account(ctypes.Structure):
    """``struct mallinfo2`` of the C library."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


def heap_free_bytes() -> int:
    """The free memory in the heap of the C library and in Python's pools; of one that does not say,
    0. Looks at each free piece: a thousandth of a second for 7,000 of them, in which no other
    thread allocates."""
    account = libc_account()
    return (0 if account is None else int(account().fordblks)) + _free_in_pools()


def _free_in_pools() -> int:
    """As CPython's own report says, which has no other form than a text: half a thousandth of a
    second for 75 MB. Up to 1 MiB of it was never used. 0 for another Python or C library."""
    report = pool_report()
    if report is None:
        return 0
    libc, write = report
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
    if not stream:
        return 0
    write(stream)
    libc.fclose(stream)
    found: list[bytes] = _UNUSED.findall(text.value or b"")
    libc.free(text)
    return sum(int(each.replace(b",", b"")) for each in found)


@functools.cache
def pool_report() -> "tuple[ctypes.CDLL, ctypes._NamedFuncPointer] | None":
    """The C library, and what writes CPython's report to one of its streams; None: not there."""
    try:
        libc, write = ctypes.CDLL(None), ctypes.pythonapi._PyObject_DebugMallocStats
        libc.open_memstream.restype = ctypes.c_void_p
        libc.fclose.argtypes = (ctypes.c_void_p,)
    except (OSError, AttributeError):
        return None
    write.argtypes = (ctypes.c_void_p,)
    return libc, write


@functools.cache
def libc_account() -> "ctypes._NamedFuncPointer | None":
    try:
        found = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):  # not glibc, or one before 2.33
        return None
    found.restype = _Account
    found.argtypes = ()
    return found


def give_back_heap() -> None:
    """Return free pages of the heap to the system, after work that let go of much at once and does
    not come again, such as loading a model. Nothing where the C library cannot."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
