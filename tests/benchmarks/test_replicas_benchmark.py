"""The benchmark of replicas knows its parts, and its books find what is wrong."""

import pytest

from benchmarks.replica_parts import SMALL, Answer, Sizes
from benchmarks.replicas import IN_CLUSTER, PARTS, RAY_PARTS, main


def test_every_part_is_played_and_no_other() -> None:
    assert set(PARTS) == {*IN_CLUSTER, "quota"}
    assert not set(PARTS) & RAY_PARTS.keys()


def test_a_part_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parts", "placement,speed"])
    assert "no such parts: speed" in capsys.readouterr().err


def test_the_small_form_does_less_of_everything() -> None:
    whole = Sizes()
    for name in Sizes.__slots__:
        assert getattr(SMALL, name) < getattr(whole, name)


def test_a_bar_is_a_figure_too() -> None:
    answer = Answer()
    answer.bar("x", 0.5, "<=", 1.0)
    assert answer.figures == {"x": 0.5}
    assert answer.bars[0].met
