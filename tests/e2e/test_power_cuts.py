"""Power cuts: in every image of the disk there is all that was acknowledged by then.

``KEEPWARM_POWER_CUTS`` says how many images are looked at (CI: 20; 200 is the long campaign).
"""

import os
import random
import shutil
from pathlib import Path

import pytest

from sessions.journal.errors import JournalError
from sessions.journal.sqlite import SqliteJournal
from tests.support.power_cuts import TURNS, image, played

IMAGES = int(os.environ.get("KEEPWARM_POWER_CUTS", "20"))
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/proc/self/fd").exists(),
    reason="needs a C compiler and Linux, to record what is written",
)


def lost_in(folder: Path, told: list[str]) -> str | None:
    """What of the acknowledged is missing, None: nothing."""
    if not (folder / "j").exists():
        return None if not told else "the file"
    try:
        journal = SqliteJournal(folder / "j", fingerprint=b"f")
    except JournalError as error:
        return str(error)
    try:
        for response_id in told:
            if not journal.chain("t", response_id):
                return response_id
        session = journal.session("t", "s")
    except JournalError as error:
        return str(error)
    finally:
        journal.close()
    turns = 0 if session is None else session.account.turns
    assert turns in (len(told), len(told) + 1), "a turn was charged that was not written"
    return None


def losses(tmp_path: Path, synchronous: str, seed: int) -> list[str]:
    operations = played(tmp_path / synchronous, synchronous)
    assert sum(each.name == "told" for each in operations) == TURNS
    chance = random.Random(seed)
    found = []
    for number in range(IMAGES):
        cut = chance.randrange(1, len(operations) + 1)
        folder = tmp_path / f"{synchronous}-{number}"
        told = image(operations, cut, chance, folder, synchronous)
        lost = lost_in(folder, told)
        if lost is not None:
            found.append(f"cut at {cut}: {lost}")
    return found


@pytest.mark.parametrize("seed", [20])
def test_no_image_of_a_cut_lacks_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    print(f"seed={seed} images={IMAGES}")
    assert losses(tmp_path, "FULL", seed) == []


@pytest.mark.parametrize("seed", [20])
def test_without_syncs_the_same_images_do(tmp_path: Path, seed: int) -> None:
    assert losses(tmp_path, "OFF", seed)
