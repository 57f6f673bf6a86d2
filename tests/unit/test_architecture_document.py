"""docs/architecture.md lists exactly the modules that exist."""

import re
from pathlib import Path

from tests.support.architecture import (
    FOLDERS,
    ROOT,
    document,
    documented_modules,
    folder_of,
    modules_in_tree,
)


def test_the_document_lists_exactly_the_modules_that_exist() -> None:
    listed = [module.name for module in document()]
    assert sorted(listed) == sorted(modules_in_tree())


def test_the_folders_stand_from_the_lowest_to_the_highest() -> None:
    assert list(FOLDERS) == list(dict.fromkeys(folder_of(module.name) for module in document()))


def test_the_modules_of_a_folder_stand_by_the_alphabet() -> None:
    listed = [module.name for module in document()]
    for folder in FOLDERS:
        mine = [name for name in listed if folder_of(name) == folder]
        assert mine == sorted(mine)


def test_the_document_is_one_page_beside_its_tables() -> None:
    lines = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line and not line.startswith(("|", "#"))]) <= 60


def test_the_index_names_files_that_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    index = text.split("## Where is")[1].split("\n## ")[0]
    rows = [row.split("|")[2] for row in index.splitlines() if row.startswith("| ")][2:]
    assert len(rows) >= 10
    for row in rows:
        folder = Path()
        for name in re.findall(r"`([\w/]+)`", row):
            if "/" in name:
                folder = Path(name).parent
            if not name.startswith("_"):
                assert (ROOT / folder / f"{Path(name).name}.py").exists(), name


def test_a_table_row_is_read_with_its_package_and_torch_mark() -> None:
    text = "### `runtime/model/` device\n| module | does | torch |\n| --- | --- | --- |\n"
    text += "| `decoder` | forward | torch |\n| `presets` | shapes | |\n# End\n| `x` | y | |\n"
    modules = documented_modules(text)
    assert [(module.name, module.uses_torch) for module in modules] == [
        ("runtime.model.decoder", True),
        ("runtime.model.presets", False),
    ]
