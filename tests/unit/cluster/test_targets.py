"""Prometheus finds the members in a file that is whole, and written when it says something else."""

import json
from pathlib import Path

import pytest

from cluster.targets import TargetsFile


def test_members_are_targets_and_their_cluster_a_label(tmp_path: Path) -> None:
    file = tmp_path / "targets.json"
    targets = TargetsFile(file, "prod")
    targets.write(["10.0.0.2:80", "10.0.0.1:80"])
    assert json.loads(file.read_text()) == [
        {"targets": ["10.0.0.1:80", "10.0.0.2:80"], "labels": {"cluster": "prod"}}
    ]
    at = file.stat().st_mtime_ns, file.stat().st_ino
    targets.write(["10.0.0.1:80", "10.0.0.2:80"])
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == at
    targets.write([])
    assert json.loads(file.read_text())[0]["targets"] == []


def test_a_file_that_cannot_be_written_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    targets = TargetsFile(tmp_path / "later" / "t.json", "c")
    for _ in range(3):
        targets.write(["10.0.0.1:80"])
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / "later").mkdir()
    targets.write(["10.0.0.1:80"])
    assert (tmp_path / "later" / "t.json").exists()
