"""Programs in the documents as ``pyright`` reads them, from npm like the clients for node."""

import subprocess
import sys
from pathlib import Path

from tests.clients.playing import made
from tests.clients.table import CLIENTS
from tests.support.architecture import ROOT
from tests.support.snippets import written


def test_pyright_finds_nothing_in_the_programs_of_the_documents(tmp_path: Path) -> None:
    where = made(next(client for client in CLIENTS if client.is_for_node))
    pyright = where.scripts / "node_modules/pyright/index.js"
    files = written(tmp_path)
    assert len(files) >= 5
    done = subprocess.run(
        [where.interpreter, pyright, "--pythonpath", sys.executable, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert "0 errors" in done.stdout
