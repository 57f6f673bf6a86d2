"""Programs in the documents are typed as strictly as our own code."""

from pathlib import Path

from mypy import api

from tests.support.architecture import ROOT
from tests.support.snippets import programs, written


def test_the_programs_of_the_documents_are_strictly_typed(tmp_path: Path) -> None:
    files = written(tmp_path)
    options = ["--strict", "--config-file", "", "--follow-imports", "silent"]
    options += ["--cache-dir", str(ROOT / ".mypy_cache/snippets")]
    told, failed, status = api.run([*options, *map(str, files)])
    assert (status, failed) == (0, ""), told


def test_there_are_programs_of_the_loop_approvals_tools_elsewhere_and_tests() -> None:
    text = "\n".join(programs().values())
    assert len(programs()) >= 5
    for used in ("session.run(", "session.pending()", "McpServer.stdio(", "ScriptedServer("):
        assert used in text
