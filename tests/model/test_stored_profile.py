"""Files of step times: what of them is believed, and what a start makes of them."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.config import EngineConfig
from runtime.machine_files import MachineFile
from runtime.model.runner import load_runner
from runtime.process.loading import load_engine
from runtime.process.stored_profile import StoredProfile, facts_of
from tests.support.clock import FakeClock

TIMES = {(0, 1): 0.01, (64, 0): 0.05, (2112, 0): 0.2}
CONFIG = EngineConfig(
    model="random:qwen3-tiny", dtype="float32", device="cpu", num_blocks=40, threads=1
)


def machine_file(folder: Path) -> MachineFile:
    return MachineFile(path=folder / "times.json", facts={"processor": "a"})


def test_what_was_written_is_read(tmp_path: Path) -> None:
    profile = StoredProfile(machine_file(tmp_path))
    assert profile.read() == {}
    profile.write(TIMES)
    assert profile.read() == TIMES


@pytest.mark.parametrize(
    "rows",
    [
        *(None, 5, [5], [[0, 1]], [[0, 1, "1.0"]], [[0, 1, 1]], [[0, True, 1.0]]),
        *([[0, -1, 1.0]], [[0, 1, 0.0]], [[0, 1, float("nan")]], [[0, 1, 1e9]]),
    ],
)
def test_what_are_no_times_counts_as_nothing_and_is_said(
    rows: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine_file(tmp_path).write(rows)
    assert StoredProfile(machine_file(tmp_path)).read() == {}
    assert len(caplog.records) == 1


def test_its_name_follows_what_times_depend_on(tmp_path: Path) -> None:
    config = replace(CONFIG, startup_profile_folder=str(tmp_path))
    runner = load_runner(config)
    facts = facts_of(runner, config)
    assert set(facts) >= {"processor", "threads", "dtype", "model", "kernels", "products"}
    assert facts_of(runner, replace(config, tensor_parallel=2)) == facts | {"ranks": "2"}
    first = StoredProfile.of(runner, config)
    other_config = replace(config, dtype="float64")
    other = StoredProfile.of(load_runner(other_config), other_config)
    paths = [profile.path for profile in (first, other) if profile is not None]
    assert len(set(paths)) == 2
    assert StoredProfile.of(runner, replace(config, startup_profile_folder="")) is None


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
