"""The documents: links lead somewhere, and the log's entries open alike."""

import re
from pathlib import Path

import pytest

from tests.support.architecture import ROOT

LOG = sorted((ROOT / "docs/log").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPENING = ("**Asked:** ", "**Seen:** ", "**Therefore:** ")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def entries(text: str) -> list[tuple[str, list[str]]]:
    """Each ``##`` heading with the lines below it that are not empty."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("## "):
            found.append((line, []))
        elif found and line.strip():
            found[-1][1].append(line)
    return found


def opens_right(lines: list[str]) -> bool:
    return len(lines) > len(OPENING) and all(
        line.startswith(word) and line.endswith((".", "?"))
        for word, line in zip(OPENING, lines, strict=False)
    )


def relative_links(text: str) -> list[str]:
    """Targets of the links to files, without the place in the file; code is not looked at."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [target.split("#")[0] for target in targets if not re.match(r"#|[a-z]+:", target)]


@pytest.mark.parametrize("path", LOG, ids=name)
def test_a_line_of_the_log_is_under_160_columns(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) >= 160] == []


@pytest.mark.parametrize("path", [p for p in LOG if p.name != "README.md"], ids=name)
def test_an_entry_says_its_date_and_what_was_asked_seen_and_done(path: Path) -> None:
    found = entries(path.read_text(encoding="utf-8"))
    assert found
    assert [head for head, lines in found if not opens_right(lines)] == []
    assert [head for head, _ in found if not re.match(r"## \d{4}-\d\d-\d\d: ", head)] == []


@pytest.mark.parametrize("path", [p for p in LOG if p.name != "README.md"], ids=name)
def test_the_entries_of_a_file_stand_newest_first(path: Path) -> None:
    dates = [head[3:13] for head, _ in entries(path.read_text(encoding="utf-8"))]
    assert dates == sorted(dates, reverse=True)


def test_the_index_of_the_log_names_every_file_of_it() -> None:
    index = relative_links((ROOT / "docs/log/README.md").read_text(encoding="utf-8"))
    assert sorted(set(index)) == [path.name for path in LOG if path.name != "README.md"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_a_relative_link_leads_to_a_file_that_exists(path: Path) -> None:
    links = relative_links(path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_table_of_variables_has_what_tests_read_and_nothing_else() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    read = {
        name for text in sources for name in re.findall(r'environ\.get\("(KEEPWARM_\w+)"', text)
    }
    told = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("### Variables of the tests")
    )
    rows = [line for line in told[1].splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(KEEPWARM_\w+)`", row)]
    assert sorted(named) == sorted(read)


def test_an_entry_without_its_opening_is_noticed() -> None:
    text = "# A file\n## One\n\n**Asked:** a?\n**Seen:** b.\n**Therefore:** c.\n\nMore.\n"
    text += "## Two\n**Seen:** b.\n**Asked:** a?\n**Therefore:** c.\n\nMore.\n"
    assert [opens_right(lines) for _, lines in entries(text)] == [True, False]


def test_links_to_other_sites_to_places_and_in_code_are_left_out() -> None:
    text = "[a](docs/x.md#top), [b](https://x.org), [c](#here), `[d](y.md)`, [`e`](z)\n"
    assert relative_links(text) == ["docs/x.md", "z"]
