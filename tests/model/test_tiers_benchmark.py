"""The benchmark of the lower tiers measures what it says."""

from benchmarks.tiers import measure


def test_every_way_back_is_measured() -> None:
    figures = measure("random:qwen3-tiny", 256, 1)
    assert figures.keys() == {
        "session_tokens",
        "computed_s",
        "from_host_s",
        "on_device_s",
        "from_disk_s",
        "without_tiers_s",
    }
    assert all(value > 0 for value in figures.values())
