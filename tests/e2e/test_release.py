"""A release is prepared twice from one commit with the same bytes, and from nothing unfinished."""

import json
import shutil
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from tests.support.architecture import PACKAGES, ROOT
from tools.release import main

FILES = ("pyproject.toml", "constraints.txt", "CHANGELOG.md", "README.md", "LICENSE", "MANIFEST.in")


def git(folder: Path, *words: str) -> None:
    options = ("user.name=test", "user.email=test@example.com", "commit.gpgsign=false")
    who = [word for option in options for word in ("-c", option)]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this tree's packages as its one commit."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All of it")
    return folder


def released(checkout: Path, folder: Path) -> dict[str, bytes]:
    assert main([str(folder), "--root", str(checkout)]) == 0
    return {path.name: path.read_bytes() for path in (folder / "0.1.0").iterdir()}


def test_two_runs_make_the_same_bytes_and_publish_nothing(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = released(checkout, tmp_path / "first")
    (checkout / "untracked").write_text("not of the commit")
    for path in checkout.rglob("*.py"):
        path.touch()
    assert time.time() > path.stat().st_mtime - 1
    second = released(checkout, tmp_path / "second")
    assert "prepared, not published" in capsys.readouterr().out
    assert first == second
    names = {"keepwarm-0.1.0-py3-none-any.whl", "keepwarm-0.1.0.tar.gz", "keepwarm-0.1.0.cdx.json"}
    assert set(first) == names | {"NOTES.md", "SHA256SUMS", "PUBLISH.txt"}
    done = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "first/0.1.0", check=False
    )
    assert done.returncode == 0
    assert "git tag --sign v0.1.0" in first["PUBLISH.txt"].decode()
    assert first["NOTES.md"].startswith(b"# Keepwarm 0.1.0\n\nFigures: ")
    tags = subprocess.run(["git", "-C", str(checkout), "tag"], capture_output=True, check=True)
    assert tags.stdout == b""
    whole(tmp_path / "first/0.1.0")


def whole(folder: Path) -> None:
    """Both archives have every file of the packages, and nothing that was not committed."""
    wheel = set(zipfile.ZipFile(folder / "keepwarm-0.1.0-py3-none-any.whl").namelist())
    with tarfile.open(folder / "keepwarm-0.1.0.tar.gz") as archive:
        members = archive.getmembers()
    sdist = {each.name.partition("/")[2] for each in members}
    assert {(each.uid, each.gid, each.uname) for each in members} == {(0, 0, "")}
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= wheel
    assert files <= sdist
    assert not {"untracked", "tests"} & (wheel | sdist)
    bill(json.loads((folder / "keepwarm-0.1.0.cdx.json").read_text()))


def bill(sbom: dict[str, object]) -> None:
    """The SBOM has what an installation pulls in, with the pins, and no test tools."""
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    components = {each["name"]: each for each in sbom["components"]}  # type: ignore[attr-defined]
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    libraries = {n: c for n, c in components.items() if c["type"] == "library"}
    assert {"pydantic", "pydantic-core", "torch", "numpy", "psycopg", "textual"} <= set(libraries)
    assert not {"pytest", "ruff", "mypy", "openapi-spec-validator"} & set(libraries)
    known = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    assert all(known[name] == each["version"] for name, each in libraries.items())
    assert any(each["type"] == "machine-learning-model" for each in components.values())
    refs = [each["bom-ref"] for each in components.values()]
    assert len(set(refs)) == len(refs)
    told = {each["ref"]: each["dependsOn"] for each in sbom["dependencies"]}  # type: ignore[attr-defined]
    assert all(other in refs for others in told.values() for other in others)
    assert any("pydantic-core" in other for other in told[libraries["pydantic"]["bom-ref"]])


def spoilt(checkout: Path, tmp_path: Path, name: str, old: str, new: str) -> Path:
    """Another checkout in which a file says something else."""
    folder = tmp_path / "spoilt"
    git(tmp_path, "clone", "--quiet", str(checkout), str(folder))
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    return folder


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"', "not of 0.2.0"),
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.9.0"', "kernels has 0.9 to 0.19"),
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.1"', "not of 0.1"),
        ("CHANGELOG.md", "## Unreleased (0.1.0)", "## 0.1.1", "not of 0.1.0"),
        ("constraints.txt", "pydantic==", "pydantic==9.", "constraints.txt has 9."),
    ],
)
def test_what_contradicts_itself_is_not_released(
    checkout: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    old: str,
    new: str,
    told: str,
) -> None:
    folder = spoilt(checkout, tmp_path, name, old, new)
    words = [str(tmp_path / "dist"), "--root", str(folder)]
    assert main(words) == 1
    assert "differ from the commit" in capsys.readouterr().err
    git(folder, "commit", "--quiet", "--all", "--message", "Spoil it")
    assert main(words) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "dist").exists()


def test_a_tag_of_another_commit_or_files_that_are_there_are_refused(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = spoilt(checkout, tmp_path, "README.md", "# Keepwarm", "# Keepwarm again")
    (tmp_path / "dist/0.1.0").mkdir(parents=True)
    words = [str(tmp_path / "dist"), "--root", str(folder)]
    git(folder, "commit", "--quiet", "--all", "--message", "Again")
    assert main(words) == 1
    assert "exists: remove it" in capsys.readouterr().err
    git(folder, "tag", "v0.1.0", "HEAD~1")
    assert main(words) == 1
    assert "raise the version" in capsys.readouterr().err
    assert main([str(tmp_path), "--root", str(tmp_path)]) == 1
    assert "git status: " in capsys.readouterr().err
