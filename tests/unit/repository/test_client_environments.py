"""Environments of clients: made from their pins, and what is said where they cannot be had."""

import stat
from pathlib import Path

import pytest

from tests.clients import environments
from tests.clients.environments import (
    NotToBeHad,
    OtherThanPinned,
    environment,
    large_binary,
)
from tests.clients.table import CLIENTS

FOR_NODE = next(client for client in CLIENTS if client.is_for_node)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where environments are made, with nothing on the path."""
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "made")
    path = tmp_path / "path"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    return path


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_without_npm_the_reason_is_told(folder: Path) -> None:
    with pytest.raises(NotToBeHad, match="there is no npm on the path"):
        environment(FOR_NODE)


def test_a_registry_that_does_not_answer_is_a_reason_to_skip(folder: Path) -> None:
    program(folder, "npm", "echo 'network: no answer' >&2; exit 1")
    with pytest.raises(NotToBeHad, match="npm failed: network: no answer"):
        environment(FOR_NODE)


def test_a_package_that_is_not_the_pinned_one_is_none(folder: Path) -> None:
    program(folder, "npm", "echo 'code EINTEGRITY' >&2; exit 1")
    with pytest.raises(OtherThanPinned):
        environment(FOR_NODE)


def test_without_node_or_with_an_old_one_the_reason_is_told(folder: Path) -> None:
    program(folder, "npm", "exit 0")
    with pytest.raises(NotToBeHad, match="there is no node"):
        environment(FOR_NODE)
    program(folder, "node", "echo v20.1.0")
    with pytest.raises(NotToBeHad, match=r"node is v20.1.0; these clients need 22"):
        environment(FOR_NODE)
    program(folder, "node", "echo v22.1.0")
    made = environment(FOR_NODE)
    assert made.interpreter == folder / "node"
    assert (made.scripts / FOR_NODE.script).is_file()


def test_a_coding_agent_is_found_in_what_npm_fetched_for_this_machine(folder: Path) -> None:
    inside = "node_modules/@openai/codex-linux-x64/vendor/bin"
    program(folder, "npm", f"/bin/mkdir -p {inside}; echo > {inside}/codex")
    found = large_binary("@openai/codex", "codex")
    assert found.stat().st_mode & stat.S_IXUSR
    with pytest.raises(NotToBeHad, match="@openai/codex has no program for this machine"):
        large_binary("@openai/codex", "claude")


def test_an_environment_is_made_again_only_for_other_pins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(folder, "npm", f"echo made >> {tmp_path}/log")
    program(folder, "node", "echo v24.0.0")
    environment(FOR_NODE)
    environment(FOR_NODE)
    pins = tmp_path / "pins"
    pins.mkdir()
    for name in ("package.json", "package-lock.json", ".npmrc"):
        (pins / name).write_text(name, encoding="utf-8")
    monkeypatch.setattr(environments, "NPM", pins)
    environment(FOR_NODE)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "made\nmade\n"
