"""Model folders that try to cost more than a model: refused in one line, for little."""

from typing import Any

import pytest

from benchmarks.ground_folders import MOST_CPU_S, MOST_MIB, OWN, PUBLISHED, rows

SERVED = ("shape_80000", "small_objects", "weights_are_a_pipe", "config_of_brackets")
LOOKED_AT = ("shape_300000", "template_that_counts", "tokenizer_of_objects")


@pytest.mark.parametrize(("command", "kinds"), [("serve", SERVED), ("doctor", LOOKED_AT)])
def test_a_bad_folder_costs_little_and_is_told_in_a_line(
    command: str, kinds: tuple[str, ...]
) -> None:
    found: list[dict[str, Any]] = rows(kinds, [command])
    assert [row["folder"] for row in found] == [*kinds]
    for row in found:
        assert row["told"], row
        assert not row["traceback"], row
        assert row["cpu_s"] <= MOST_CPU_S, row
        assert row["mib"] <= MOST_MIB, row


def test_there_are_as_many_kinds_as_were_asked_for() -> None:
    assert len(PUBLISHED) == 5
    assert len(OWN) >= 10
