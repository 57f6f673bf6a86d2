"""The release that the tree says it is."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.architecture import ROOT
from tools_api.version import __version__


def test_it_is_what_the_installed_distribution_says() -> None:
    try:
        installed = importlib.metadata.version("keepwarm")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("keepwarm is not installed here")
    assert __version__ == installed


def test_a_tree_that_was_never_installed_says_so(tmp_path: Path) -> None:
    # A copy elsewhere: `pip install -e .` leaves its metadata in the root of a checkout.
    (tmp_path / "version.py").write_text(
        (ROOT / "tools_api" / "version.py").read_text("utf-8"), "utf-8"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-S", "-c", "import version; print(version.__version__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "0+unknown\n"
