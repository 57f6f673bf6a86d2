"""The documents that say where things are: the map is a page, the table is what is there."""

import re
from pathlib import Path

import pytest

from sessions.turns import effects
from sessions.turns.playing import Playing
from sessions.turns.running import Running
from tests.support.architecture import ROOT, folder_of, modules_in_tree
from tools import modules_table
from tools.modules_table import FOLDERS

MAP = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
MAX_KB = {"docs/architecture.md": 12, "CHANGELOG.md": 8}


def rows(text: str) -> list[tuple[str, str]]:
    """Every row of a table of modules: the module's dotted name and its text."""
    found, folder = [], ""
    for line in text.splitlines():
        if heading := re.match(r"## `([\w/]+)/`$", line):
            folder = heading[1].replace("/", ".")
        elif row := re.match(r"\| `(\w+)` \| (.*) \| (?:torch)? ?\|$", line):
            found.append((f"{folder}.{row[1]}", row[2]))
    return found


def test_the_table_of_modules_is_what_their_docstrings_say() -> None:
    assert modules_table.main(["--check"]) == 0, "run python -m tools.modules_table"


def test_the_table_lists_exactly_the_modules_that_exist_by_floor_and_alphabet() -> None:
    listed = [name for name, _ in rows(modules_table.document())]
    expected = sorted(modules_in_tree(), key=lambda name: (FOLDERS.index(folder_of(name)), name))
    assert listed == expected


def test_a_module_is_told_in_a_line() -> None:
    long = {name for name, text in rows(modules_table.document()) if len(text) > 180}
    assert not long
    assert all(text.endswith((".", "?")) for _, text in rows(modules_table.document()))


@pytest.mark.parametrize(
    ("source", "torch", "paragraph"),
    [
        (
            '"""One ``thing``\nin two lines.\n\nMore.\n"""\nimport torch.nn\n',
            True,
            "One `thing` in two lines.",
        ),
        ('"""A."""\ndef f(): from torch import nn\n', True, "A."),
        ('"""A."""\nimport torchvision\nfrom . import torch\n', False, "A."),
    ],
)
def test_a_row_is_the_first_paragraph_and_a_mark(source: str, torch: bool, paragraph: str) -> None:
    assert modules_table.first_paragraph(source) == paragraph
    assert modules_table.imports_torch(source) is torch


def test_a_document_that_is_not_as_written_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(modules_table, "DOCUMENT", tmp_path / "modules.md")
    assert modules_table.main([]) == 0
    assert modules_table.main(["--check"]) == 0
    (tmp_path / "modules.md").write_text("# Modules\n")
    assert modules_table.main(["--check"]) == 1
    assert modules_table.main(["--chek"]) == 2


@pytest.mark.parametrize("name", MAX_KB)
def test_a_page_stays_a_page(name: str) -> None:
    assert (ROOT / name).stat().st_size <= 1024 * MAX_KB[name]


def test_the_index_names_files_that_exist() -> None:
    index = MAP.split("## Where is")[1].split("\n## ")[0]
    rows = [row.split("|")[2] for row in index.splitlines() if row.startswith("| ")][2:]
    assert len(rows) >= 10
    for row in rows:
        folder = Path()
        for name in re.findall(r"`([\w/]+)`", row):
            if "/" in name:
                folder = Path(name).parent
            if not name.startswith("_"):
                assert (ROOT / folder / f"{Path(name).name}.py").exists(), name


def test_the_picture_of_a_requests_life_names_what_is_there() -> None:
    picture = MAP.split("## A request's life")[1].split("```")[1]
    steps = re.findall(r"[├└] (\w+)", picture)
    assert {"_claim_id", "_run", "_record", "_let_go"} <= set(steps)
    assert [step for step in steps if not (hasattr(Running, step) or hasattr(Playing, step))] == []
    for name in re.findall(r"\b([a-z]\w+\.[a-z]\w+)", picture):
        assert any(module.endswith(name) for module in modules_in_tree()), name
    for name in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+|\bWanted\b|\bWork\b", picture):
        assert name in effects.__dict__, name
