"""Memory that a process has let go of and its C library keeps: room for what it allocates next.

A step's tensors are let go of at its end, but what lasts was allocated between them, so that the
heap cannot shrink. The system counts this as used.
"""

import contextlib
import ctypes
import functools

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Account(ctypes.Structure):
    """``struct mallinfo2`` of the C library."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


def heap_free_bytes() -> int:
    """The free memory in the heap; 0 where the C library does not say. Looks at each free piece:
    a thousandth of a second for 7,000 of them, in which no other thread allocates."""
    account = libc_account()
    return 0 if account is None else int(account().fordblks)


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
