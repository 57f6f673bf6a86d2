"""How much of the time a GPU runs kernels, whoever's they are, as its driver tells it.

The driver (NVML) says in how much of the last moment, a sixth of a second to a second, a kernel
ran. That is coarse, and the same for every engine, with no change to any of them.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 0.1
LIBRARY = "libnvidia-ml.so.1"
ReadShare = Callable[[], float]
"""The share of the last moment; may raise OSError."""


class CardBusy:
    """Shares of the time, as they were read."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """``clock``: seconds, those of the times that are asked for."""
        self._clock = clock
        self._told: list[tuple[float, float]] = []
        """When a share was read, and the share."""

    def take(self, share: float) -> None:
        """The share of the moment that is over now."""
        self._told.append((self._clock(), share))

    def share(self, begin_s: float, end_s: float) -> float | None:
        """The mean share between two moments; None where nothing was read between them."""
        shares = [share for at_s, share in self._told if begin_s <= at_s <= end_s]
        return sum(shares) / len(shares) if shares else None


class _Utilization(ctypes.Structure):
    """``nvmlUtilization_t``: percent of the last sample period."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def first_card(library: str = LIBRARY) -> ReadShare:
    """Reads the share of this machine's first GPU. Raises OSError: there is no driver, or it
    refuses."""
    nvml = ctypes.CDLL(library)

    def call(name: str, *given: object) -> None:
        code = getattr(nvml, name)(*given)
        if code:
            raise OSError(f"{name} failed with NVML's error {code}")

    card, said = ctypes.c_void_p(), _Utilization()
    call("nvmlInit_v2")
    call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(card))

    def read() -> float:
        call("nvmlDeviceGetUtilizationRates", card, ctypes.byref(said))
        return said.gpu / 100

    read()  # a driver that tells no card's says so here
    return read


@contextmanager
def watched_card(
    open_card: Callable[[], ReadShare] = first_card, every_s: float = EVERY_S
) -> Iterator[CardBusy]:
    """The card's shares until the end; none from where the driver says nothing."""
    busy, over = CardBusy(), threading.Event()
    try:
        read = open_card()
    except OSError:
        yield busy
        return

    def watch() -> None:
        try:
            while not over.wait(every_s):
                busy.take(read())
        except OSError:
            return  # the card is lost: what was measured stands

    watcher = threading.Thread(target=watch, name="card busy", daemon=True)
    watcher.start()
    try:
        yield busy
    finally:
        over.set()
        watcher.join()
