"""Recorded dialogues: what clients and a server say to one another stays the same, frame by frame.

Each test plays one dialogue against a server of its own and compares all that was said with
what ``tests/e2e/dialogues`` has of it; with ``KEEPWARM_RECORD_DIALOGUES=1`` it is written there
instead. Where a change means to say something else, the difference of the recordings is what
it says.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dialogues import Dialogue
from tests.support.said import ends, http, turns
from tests.support.stage import Stage

RECORDINGS = Path(__file__).parent / "dialogues"
RECORD = os.environ.get("KEEPWARM_RECORD_DIALOGUES") == "1"
DIALOGUES = turns.DIALOGUES.by_name | ends.DIALOGUES.by_name | http.DIALOGUES.by_name


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[asyncio.Runner, Stage]]:
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        made = Stage(patch)
        runner.run(made.open())
        yield runner, made
        runner.run(made.close())


@pytest.mark.parametrize("name", DIALOGUES)
@pytest.mark.samples(12)
def test_a_dialogue_is_what_it_was(
    name: str, stage: tuple[asyncio.Runner, Stage], tmp_path: Path
) -> None:
    runner, made = stage
    played = Dialogue(made, tmp_path)

    async def play() -> None:
        try:
            await DIALOGUES[name](played)
        finally:
            await played.stop()

    runner.run(play())
    recording = RECORDINGS / f"{name}.jsonl"
    if RECORD:
        recording.write_text(played.script.text())
    said = [json.loads(line) for line in recording.read_text().splitlines()]
    assert played.script.lines == said


def test_every_recording_is_of_a_dialogue() -> None:
    assert {path.stem for path in RECORDINGS.iterdir()} == set(DIALOGUES)
    assert len(DIALOGUES) >= 30
