"""Files of step times: whose they are, and what of them is believed."""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.config import EngineConfig
from runtime.model.runner import load_runner
from runtime.process.loading import load_engine
from runtime.process.stored_profile import MOST_BYTES, StoredProfile, facts_of
from tests.support.clock import FakeClock

TIMES = {(0, 1): 0.01, (64, 0): 0.05, (2112, 0): 0.2}
CONFIG = EngineConfig(
    model="random:qwen3-tiny", dtype="float32", device="cpu", num_blocks=40, threads=1
)


def stored(folder: Path, **facts: str) -> StoredProfile:
    return StoredProfile(path=folder / "times.json", facts={"processor": "a", **facts})


def test_what_was_written_is_read(tmp_path: Path) -> None:
    profile = stored(tmp_path / "made")
    assert profile.read() == {}
    profile.write(TIMES)
    assert profile.read() == TIMES
    assert [path.name for path in profile.path.parent.iterdir()] == ["times.json"]


def _cut(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()[:-9]


def _with_row(row: object) -> Callable[[dict[str, Any]], bytes]:
    return lambda content: json.dumps(content | {"times": [row]}).encode()


@pytest.mark.parametrize(
    "damage",
    [
        _cut,
        lambda content: b"",
        lambda content: b"\xff\xfe",
        lambda content: b"[" * 60_000,
        lambda content: b"[]",
        lambda content: json.dumps(content).encode() + b" " * MOST_BYTES,
        lambda content: json.dumps(content | {"format": 2}).encode(),
        lambda content: json.dumps(content | {"facts": {"processor": "b"}}).encode(),
        lambda content: json.dumps(content | {"facts": None}).encode(),
        lambda content: json.dumps(content | {"times": None}).encode(),
        _with_row([0, 1]),
        _with_row([0, 1, "1.0"]),
        _with_row([0, 1, 1]),
        _with_row([0, True, 1.0]),
        _with_row([0, -1, 1.0]),
        _with_row([0, 1, 0.0]),
        _with_row([0, 1, float("nan")]),
        _with_row([0, 1, 1e9]),
    ],
)
def test_a_damaged_or_foreign_file_is_named_in_one_line_and_counts_as_nothing(
    damage: Callable[[dict[str, Any]], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profile = stored(tmp_path)
    profile.write(TIMES)
    content = json.loads(profile.path.read_bytes())
    profile.path.write_bytes(damage(content))
    assert profile.read() == {}
    (record,) = caplog.records
    assert str(profile.path) in record.message
    assert "\n" not in record.message
    profile.write(TIMES)
    assert profile.read() == TIMES


def test_a_file_of_another_machine_says_what_differs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored(tmp_path, threads="2").write(TIMES)
    assert stored(tmp_path, threads="4").read() == {}
    assert "of another machine or model: threads differ" in caplog.text


def test_a_folder_that_cannot_be_written_is_said_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    stored(tmp_path / "file").write(TIMES)
    (record,) = caplog.records
    assert "not stored" in record.message


def test_its_name_follows_what_times_depend_on(tmp_path: Path) -> None:
    config = replace(CONFIG, startup_profile_folder=str(tmp_path))
    runner = load_runner(config)
    facts = facts_of(runner, config)
    assert set(facts) >= {"processor", "threads", "dtype", "model", "kernels", "products"}
    first, same = StoredProfile.of(runner, config), StoredProfile.of(runner, config)
    other_config = replace(config, dtype="float64")
    other = StoredProfile.of(load_runner(other_config), other_config)
    paths = [profile.path for profile in (first, same, other) if profile is not None]
    assert len(paths) == 3
    assert paths[0] == paths[1] != paths[2]
    assert StoredProfile.of(runner, replace(config, startup_profile_folder="")) is None
    assert StoredProfile.of(runner, replace(config, startup_profile_folder=None)) is None


def test_a_start_leaves_a_file_and_a_damaged_one_changes_nothing_but_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(CONFIG, startup_profile_folder=str(tmp_path))
    caplog.set_level(logging.WARNING)
    load_engine(config, clock=FakeClock(tick_s=0.001))
    (name,) = os.listdir(tmp_path)
    written = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(written[:40])
    engine = load_engine(config, clock=FakeClock(tick_s=0.001))
    assert any(map(any, engine.costs.table.timed))
    assert len(caplog.records) == 1
    assert json.loads((tmp_path / name).read_bytes())["format"] == 1
