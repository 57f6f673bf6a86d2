"""The sessions benchmark measures what it says, at a small size."""

from pathlib import Path

import pytest

from benchmarks.sessions import (
    commit_over_fsync,
    idle_bytes,
    load_chain,
    open_many,
    options,
    request_id_ms,
    turn,
    turns_per_s,
)
from sessions.journal.encoding import HeaderCache, encode_turn


def test_a_turn_is_of_about_eight_kilobytes() -> None:
    assert 7_500 < len(encode_turn(turn("r1"), HeaderCache())) < 9_000


@pytest.mark.slow
def test_every_figure_is_measured(tmp_path: Path) -> None:
    ratio, figures = commit_over_fsync(tmp_path, 3)
    assert ratio > 0
    assert figures["bytes"] > 8_000
    assert turns_per_s(tmp_path, 4, 2) > 0
    assert open_many(tmp_path, 20) > 0
    assert request_id_ms(tmp_path, 3)["sqlite_take_ms"] > 0
    assert load_chain(tmp_path, 5, 1) > 0
    assert idle_bytes(tmp_path, 10) >= 0
    assert options().parse_args(["--json", "--smoke"]).smoke
