"""docs/clients.md tells what ``make test-clients`` tries, and nothing about it can drift."""

import ast
import re
from pathlib import Path

import pytest

from tests.clients.documented import examples
from tests.clients.table import (
    AGENTS,
    BACKGROUND,
    CLIENTS,
    COMPACTING,
    LARGE_NPM,
    NPM,
    OWN_TOOLS,
    REQUIREMENTS,
    SCRIPTS,
    backgrounds,
    compactions,
    conversations,
    matrix,
    own_tools,
    version,
)
from tests.support.architecture import ROOT

DOCUMENT = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
PINNED = sorted(REQUIREMENTS.glob("*.txt"))
SHARED = {"common.py", "common.mjs"}
OF_FORMATS = {"openai_formats.py", "anthropic_formats.py"}
"""Played against models that write calls in several ways, by ``test_formats.py``."""
OF_TYPES = {"anthropic_types.py"}
"""Asks no server: prints what its package publishes, for ``test_published_types.py``."""


def test_the_matrix_is_that_of_the_table_with_the_versions_that_are_pinned() -> None:
    assert f"\n\n{matrix()}\n\n" in DOCUMENT
    assert f"\n\n{conversations()}\n\n" in DOCUMENT
    assert f"\n\n{compactions()}\n\n" in DOCUMENT
    assert f"\n\n{own_tools()}\n\n" in DOCUMENT
    assert f"\n\n{backgrounds()}\n\n" in DOCUMENT


def test_every_script_is_a_row_and_every_row_a_script() -> None:
    agents = [*AGENTS, *COMPACTING, *OWN_TOOLS, *BACKGROUND]
    played = [*CLIENTS, *(agent for agent in agents if not agent.large)]
    assert {each.script for each in played} == {
        path.name for path in SCRIPTS.iterdir() if path.suffix in {".py", ".mjs"}
    } - SHARED - OF_FORMATS - OF_TYPES
    assert len({(each.script, each.way) for each in played}) == len(played)


def test_every_requirement_file_is_that_of_a_client() -> None:
    assert {
        each.environment for each in [*CLIENTS, *COMPACTING, *AGENTS] if not each.is_for_node
    } == {path.stem for path in PINNED}


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.stem)
def test_every_package_is_pinned_with_hashes_and_without_an_address(path) -> None:
    text = path.read_text(encoding="utf-8")
    packages = re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]
    assert packages
    assert all(re.match(r"[\w.\-\[\]]+==\S+", each) for each in packages)
    assert all("--hash=sha256:" in each for each in packages)
    assert "://" not in text


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.stem)
def test_what_is_asked_for_is_what_is_pinned(path) -> None:
    asked = path.with_suffix(".in").read_text(encoding="utf-8").splitlines()
    scripted = [each for each in [*CLIENTS, *COMPACTING, *AGENTS] if not each.is_for_node]
    shown = [each for each in scripted if each.environment == path.stem]
    own = next(each for each in shown if each.package == path.stem)
    assert asked[0].endswith(f"=={version(own)}")
    others = {f"{each.package}=={version(each)}" for each in shown if each.package != path.stem}
    assert others <= set(asked)


@pytest.mark.parametrize("folder", [NPM, LARGE_NPM], ids=lambda path: path.name)
def test_the_lock_of_npm_has_checksums_and_no_address(folder: Path) -> None:
    text = (folder / "package-lock.json").read_text(encoding="utf-8")
    assert "://" not in text
    assert text.count('"integrity": "sha512-') == text.count('"node_modules/') > 0


def test_every_client_has_lines_that_point_it_at_the_server() -> None:
    found = examples()
    assert {example.name for example in found} == {client.heading for client in CLIENTS}
    for example in found:
        if not example.is_for_node:
            ast.parse(example.code)
