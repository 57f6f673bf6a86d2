"""What an installed keepwarm consists of, and what the base install needs."""

import email.parser
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.architecture import PACKAGES, ROOT

BASE_INSTALL = {"websockets", "orjson", "pydantic"}
SERVER_ONLY = ("torch", "numpy", "xxhash", "tokenizers", "safetensors", "llguidance",
               "prometheus_client", "uvloop", "tqdm", "runtime", "radix_cache", "sessions",
               "kernels")  # fmt: skip
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel of this tree, built from a copy so that the tree stays as it is."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in (*PACKAGES, "tests", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, str(folder)],
        cwd=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.Path(path)


def names(wheel: zipfile.Path) -> set[str]:
    return set(wheel.root.namelist())


def test_the_wheel_holds_the_five_packages_and_nothing_beside_them(wheel: zipfile.Path) -> None:
    tops = {name.split("/")[0] for name in names(wheel)}
    assert tops == {*PACKAGES, "keepwarm-0.1.0.dist-info"}


def test_the_wheel_holds_every_file_of_the_packages(wheel: zipfile.Path) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "runtime/assets/byte_tokenizer/tokenizer.json" in files
    assert files <= names(wheel)


def test_the_wheel_says_what_it_needs(wheel: zipfile.Path) -> None:
    folder = wheel / "keepwarm-0.1.0.dist-info"
    head = email.parser.Parser().parsestr((folder / "METADATA").read_text())
    base = [line for line in head.get_all("Requires-Dist") if "extra ==" not in line]
    assert {line.split(">")[0] for line in base} == BASE_INSTALL
    assert head["Requires-Python"] == ">=3.11"
    assert head["License-Expression"] == "Apache-2.0"
    assert "keepwarm = sessions.cli:main" in (folder / "entry_points.txt").read_text()


def test_the_version_keeps_away_from_the_other_distribution_of_that_name() -> None:
    """Another distribution named kernels has 0.9 to 0.19, and others look at the number."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    major, minor = (int(part) for part in version.split(".")[:2])
    assert major >= 1 or minor <= 8


def test_transformers_does_not_take_our_kernels_for_the_other_distribution() -> None:
    program = "from transformers.utils import is_kernels_available as a; raise SystemExit(a())"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert result.returncode == 0


def test_the_client_runs_without_anything_of_the_server(
    wheel: zipfile.Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(str(wheel.root.filename)) as plain:
        plain.extractall(tmp_path)  # `zipfile.Path`'s fails on folders before Python 3.11.4
    program = f"""
import sys
blocked = set({SERVER_ONLY!r})
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"{{name}} is not in the base install")
sys.meta_path.insert(0, Blocker())
sys.path.insert(0, {str(tmp_path)!r})
import tools_api.client, tools_api.tool_loop
assert tools_api.client.__file__.startswith({str(tmp_path)!r})
def look_up(name: str) -> str: ...
assert tools_api.tool_loop.tool(look_up).name == "look_up"
"""
    result = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_every_pin_is_exact_and_every_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert "+" not in pins["torch"], "no build is named, so that an index may offer the CPU one"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = {
        re.split(r"[\[<>=;]", line)[0] for line in itertools.chain(project["dependencies"], *extras)
    }
    assert wanted - {"keepwarm"} <= pins.keys()
