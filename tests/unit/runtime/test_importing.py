"""Imports without the collector, and children that begin with them."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.importing import child_words, importing, imports_are_over, imports_begin
from tests.support.architecture import ROOT

CHILD = """\
import gc, sys
assert not gc.isenabled() and not gc.get_freeze_count()
kept = [[] for _ in range(100_000)]

def main():
    gc_is_back = gc.isenabled() and gc.get_freeze_count() > 100_000
    print(sys.argv[1:], gc_is_back, __name__)
    return {status}
"""


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Other tests find the collector as it was."""
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize(("told", "status"), [("None", 0), ("0", 0), ("3", 3)])
def test_a_child_is_imported_without_the_collector_and_runs_with_it(
    told: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "its_child.py").write_text(CHILD.format(status=told))
    ran = subprocess.run(
        [*child_words("its_child"), "--port", "7"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (status, "")
    assert ran.stdout.split("]") == ["['--port', '7'", " True its_child\n"]


def test_the_collector_is_back_also_where_a_module_is_missing() -> None:
    gc.unfreeze()
    with pytest.raises(ModuleNotFoundError), importing():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_without_a_beginning_there_is_no_end() -> None:
    gc.unfreeze()
    imports_are_over()
    assert not gc.get_freeze_count()
    imports_begin()
    assert not gc.isenabled()
    imports_are_over()
    assert gc.isenabled()


@pytest.mark.tail
@pytest.mark.parametrize(
    "module",
    [
        "runtime.grammar.probe_process",
        "runtime.process.engine_process",
        "sessions.wire.read_process",
    ],
)
def test_every_child_of_a_server_has_a_main_for_it(module: str) -> None:
    """It takes no argument: what it is told stands in ``sys.argv``."""
    program = f"from inspect import signature; from {module} import main; print(signature(main))"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert ran.stdout.startswith("() ->")
