"""The share of the time in which a card runs kernels."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.card_busy import LIBRARY, CardBusy, first_card, watched_card

STAND_IN = """
typedef struct { unsigned gpu, memory; } utilization;
static int card, reads;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **found)
    { if (index) return 2; *found = &card; return 0; }
int nvmlDeviceGetUtilizationRates(void *asked, utilization *said)
    { if (asked != &card) return 2; if (++reads > 3) return 15;
      said->gpu = 20 + reads; said->memory = 99; return 0; }
"""
"""Loses its card at the fourth look."""


def test_a_share_is_the_mean_of_what_was_read_between_two_moments() -> None:
    now = 0.0
    busy = CardBusy(clock=lambda: now)
    for at, share in [(1.0, 0.2), (2.0, 0.5), (3.0, 0.9), (4.0, 1.0)]:
        now = at
        busy.take(share)
    assert busy.share(2.0, 3.0) == pytest.approx(0.7)
    assert busy.share(3.5, 9.0) == 1.0
    assert busy.share(2.1, 2.9) is None


def test_what_is_read_beside_a_play_is_its_share() -> None:
    enough = threading.Event()
    shares = iter([0.25, 0.75])

    def read() -> float:
        share = next(shares, None)
        if share is None:
            enough.set()
            raise OSError("the card is lost")
        return share

    with watched_card(lambda: read, every_s=0.001) as busy:
        assert enough.wait(30)
    assert busy.share(float("-inf"), float("inf")) == 0.5


def test_without_a_driver_nothing_is_said() -> None:
    def refuse() -> Callable[[], float]:
        raise OSError("no driver")

    with watched_card(refuse) as busy:
        assert busy.share(float("-inf"), float("inf")) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_the_library_is_missed() -> None:
    with pytest.raises(OSError, match="libnvidia-ml"):
        first_card(LIBRARY)


def test_a_driver_is_asked_as_its_header_says(tmp_path: Path) -> None:
    source, library = tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(STAND_IN)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    said = (
        "from benchmarks.card_busy import first_card\n"
        f"read = first_card({str(library)!r})\n"
        "print(read(), read())\n"
        "read()\n"
    )
    command = [sys.executable, "-c", said]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.stdout.split() == ["0.22", "0.23"]
    assert "nvmlDeviceGetUtilizationRates failed with NVML's error 15" in ran.stderr
