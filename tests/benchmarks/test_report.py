"""How a benchmark answers."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.report import Bar, report

RESULTS = sorted(Path("benchmarks/results").glob("*.json"))


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_null(
    value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = Bar(name="b", value=value, op="<=", bar=-1e300)
    figures = {"a": value, "rows": [{"b": (value, 1.5)}], "said": "nan"}
    code = report("some", figures, [bar], as_json=True)
    answer = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert answer["figures"] == {"a": None, "rows": [{"b": [None, 1.5]}], "said": "nan"}
    assert answer["bars"][0]["value"] is None
    assert (answer["bars"][0]["met"], code) == ((True, 0) if value == -math.inf else (False, 1))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_kept_result_is_json(path: Path) -> None:
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)
