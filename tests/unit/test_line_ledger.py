"""The line ledger counts what is there."""

import pytest

from tests.support.architecture import PACKAGES, source_files
from tools import line_ledger


def test_it_counts_the_lines_of_every_package(capsys: pytest.CaptureFixture[str]) -> None:
    line_ledger.main()
    table = {row.split()[0]: row.split() for row in capsys.readouterr().out.splitlines()}
    counts = {
        package: sum(len(path.read_text().splitlines()) for path in source_files(package))
        for package in PACKAGES
    }
    assert {package: int(table[package][2]) for package in PACKAGES} == counts
    assert int(table["together"][1]) == sum(counts.values())
