"""The document on security says what is true: limits, tests and files that it names."""

import re
from dataclasses import fields

from tests.support.architecture import ROOT
from tools import limits_table
from tools_api.limits import DEFAULT_LIMITS, Limits


def test_the_table_of_limits_is_that_of_the_source() -> None:
    text = limits_table.DOCUMENT.read_text()
    assert limits_table.with_table(text) == text, "run python -m tools.limits_table"


def test_every_limit_has_a_row_with_its_value() -> None:
    rows = limits_table.table().splitlines()
    assert len(rows) == 2 + len(fields(Limits))
    assert "| `max_frame_bytes` | 16 MiB | Larger request frames close" in rows[2]
    assert f"| `max_tools` | {DEFAULT_LIMITS.max_tools} |" in limits_table.table()
    assert "| `connection_age_s` | 3600 s |" in limits_table.table()


def test_every_test_and_file_that_it_names_is_there() -> None:
    text = limits_table.DOCUMENT.read_text()
    named = re.findall(r"`((?:tests/[\w/]+/)?test_\w+\.py|tests/\w+)`", text)
    assert len(named) > 8
    for name in named:
        assert list(ROOT.glob(name)) or list(ROOT.glob(f"tests/unit/**/{name}")), name
    for target in re.findall(r"\]\((\.\./[\w/.]+)\)", text):
        assert (ROOT / "docs" / target).exists(), target
