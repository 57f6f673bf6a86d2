"""The ground gives way under a served model: on a disk that fails, and before it has started."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ground import SMOKE, serving, table
from benchmarks.ground_faults import FAULTS, failing_disk
from tests.support.faults import until


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return table(smoke=True)


@pytest.mark.slow
def test_no_turn_is_computed_or_lost_whatever_gives_way(rows: list[dict[str, Any]]) -> None:
    assert {(row["fault"], row["loaded"]) for row in rows} == set(SMOKE)
    for row in rows:
        assert row["acknowledged_lost"] == row["engine_steps"] == 0, row
        assert row["refused"] > 0, row
        assert row["log_lines"] <= 4, row
        assert row["not_ready_s"] < float("inf"), row
        assert row.get("ready_again_s", 0.0) < float("inf"), row


@pytest.mark.slow
def test_a_server_that_starts_on_a_full_disk_serves_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    place = str(tmp_path / "disk/j.db")
    with failing_disk(tmp_path / "disk", tmp_path / "control"):
        with serving(tmp_path, place) as served:
            ended, _ = asyncio.run(served.turn("s", 1))
            assert ended in ("response.completed", "response.incomplete")
        (tmp_path / "control").write_text("f")
        with serving(tmp_path, place) as again:
            status, why = again.page("/readyz")
            assert (status, "(journal)" in why) == (503, True)
            for id_ in served.acknowledged:
                assert again.page(f"/v1/responses/{id_}")[0] == 200
            assert asyncio.run(again.turn("s", 2))[0] == "error"
            (tmp_path / "control").unlink()
            until(lambda: again.page("/readyz")[0] == 200)
            assert asyncio.run(again.turn("s", 3))[0] in (
                "response.completed",
                "response.incomplete",
            )
            assert len(again.complaints()) <= 4


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {name for name, _ in SMOKE} <= {fault.name for fault in FAULTS}
