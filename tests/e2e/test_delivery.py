"""What is handed over works where nothing of this tree is: a source distribution, an image's
file, a service's unit."""

import functools
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from keepwarm.demo.child_server import child_server
from sessions.command.serve_settings import SERVE_SETTINGS
from sessions.journal.places import state_folder
from tests.support.architecture import PACKAGES, ROOT
from tools.replay_dockerfile import IMAGE, copied, instructions
from tools_api.limits import DEFAULT_LIMITS

UNIT = ROOT / "deploy/systemd/keepwarm.service"
FILES = ("Dockerfile", "Dockerfile.gpu")
IMAGES = {name: list(instructions((ROOT / name).read_text(encoding="utf-8"))) for name in FILES}
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""


def build(kind: str, source: Path, folder: Path) -> Path:
    """Have setuptools build ``kind``; the path of the one file that it makes."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, f"build_{kind}", str(folder)],
        cwd=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a clone has of the packages and the files beside them."""
    folder = tmp_path_factory.mktemp("tree")
    for path in ROOT.iterdir():
        if path.name in (*PACKAGES, "deploy", "docs", "examples", "tests"):
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(path, folder / path.name, ignore=ignore)
        elif path.is_file() and path.name != ".git":
            shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def source(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", tree, folder / "dist")) as archive:
        # Pythons before 3.11.4 know no filter.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder / "keepwarm-0.1.0"


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the source distribution alone makes."""
    return build("wheel", source, tmp_path_factory.mktemp("wheel") / "dist")


def test_the_source_distribution_has_what_an_installation_needs_and_no_tests(source: Path) -> None:
    names = {path.name for path in source.iterdir()}
    assert {*PACKAGES, "pyproject.toml", "README.md", "LICENSE", "constraints.txt"} <= names
    assert {"Dockerfile", "Dockerfile.gpu", ".dockerignore", "deploy", "docs"} <= names
    assert "tests" not in names
    assert (source / "examples/monitoring/keepwarm.rules.yml").is_file()
    assert not list(source.rglob("*.pyc"))


def test_the_wheel_of_the_source_distribution_has_every_file_of_the_packages(wheel: Path) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= set(zipfile.ZipFile(wheel).namelist())


def needed(extra: str) -> list[importlib.metadata.Distribution]:
    """What keepwarm and one of its extras need, and what that needs in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"][extra]]
    waiting = [Requirement(line) for line in lines]
    found: dict[str, importlib.metadata.Distribution] = {}
    while waiting:
        wanted = waiting.pop()
        if wanted.name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        try:
            found[wanted.name] = importlib.metadata.distribution(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # the torch build that is installed here does without it
        waiting += map(Requirement, found[wanted.name].requires or ())
    return list(found.values())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with that wheel and the server's dependencies, which are links
    to what this environment has, so that no index is asked."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in needed("server"):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install",
         "--quiet", "--no-compile", "--no-deps", "--no-index", str(wheel)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def test_what_was_installed_from_the_source_distribution_passes_its_demo(
    installed: Path, tmp_path: Path
) -> None:
    # The cache has nothing but the compiled kernels and what was timed on this machine.
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    clean = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": cache, "HOME": str(tmp_path)}
    done = subprocess.run(
        [installed / "keepwarm", "demo", "--sessions", "2"],
        cwd=tmp_path, env=clean, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    where = subprocess.run(
        [installed / "python", "-c", "import runtime.config as c; print(c.__file__)"],
        cwd=tmp_path, env=clean, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert Path(where).is_relative_to(installed.parent)


# The image


def last(word: str, file: str = "Dockerfile") -> str:
    return [rest for each, rest in IMAGES[file] if each == word][-1]


@pytest.mark.parametrize("file", FILES)
def test_the_image_is_debians_and_its_server_is_nobody_of_note(file: str) -> None:
    first, *rest = IMAGES[file]
    assert first == ("ARG", f"BASE={IMAGE}")
    assert {each.split()[0] for word, each in rest if word == "FROM"} == {"${BASE}"}
    assert int(last("USER", file)) >= 10_000
    place = [word for word, _ in IMAGES[file]]
    assert place.index("USER") > max(n for n, word in enumerate(place) if word in {"RUN", "COPY"})


def test_the_image_for_gpus_differs_in_what_a_gpu_needs_alone() -> None:
    for word in ("USER", "ENTRYPOINT", "CMD", "EXPOSE", "VOLUME", "STOPSIGNAL"):
        assert last(word, "Dockerfile.gpu") == last(word)
    checks = [last("HEALTHCHECK", file).partition("CMD ")[2] for file in FILES]
    assert checks[0] == checks[1]
    plain, gpu = (" ".join(rest for word, rest in IMAGES[file] if word == "RUN") for file in FILES)
    assert "'/src[server,otel,postgres,gpu]'" in gpu
    assert "'/src[server,otel" in plain
    assert "python3-dev" in gpu, "Triton compiles its launchers"
    variables = {rest for word, rest in IMAGES["Dockerfile.gpu"] if word == "ENV"}
    assert {"NVIDIA_VISIBLE_DEVICES=all"} < variables - {
        rest for word, rest in IMAGES["Dockerfile"] if word == "ENV"
    }


def test_all_that_the_image_is_made_of_gets_into_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.split(".")[0] for name in project["tool"]["setuptools"]["packages"]}
    files = {"constraints.txt", "pyproject.toml", "README.md", "LICENSE"}
    assert set(copied(ROOT)) == packages | files


def test_the_image_does_not_serve_the_world_without_a_key(installed: Path) -> None:
    words = json.loads(last("CMD"))
    done = subprocess.run(
        [installed / "keepwarm", *words],
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs a key" in done.stderr


def test_the_health_check_tells_a_server_that_is_ready_from_none(tmp_path: Path) -> None:
    python, *words = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert python == "python"

    def healthy(address: str) -> bool:
        there = [word.replace("127.0.0.1:8080", address) for word in words]
        done = subprocess.run([sys.executable, *there], capture_output=True, check=False)
        return done.returncode == 0

    model = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "16", "--api-key", "a-good-key"]
    with child_server(model, log=tmp_path / "log") as server:
        address = server.url.removeprefix("http://").removesuffix("/v1")
        assert httpx.get(f"http://{address}/v1/models").status_code == 401
        assert healthy(address)
    assert not healthy(address)


def test_a_dockerfile_is_read_with_its_continued_lines_and_without_its_comments() -> None:
    text = "# a\nFROM x AS y\nRUN a \\\n && b\n# c\nuser 1\n"
    assert list(instructions(text)) == [("FROM", "x AS y"), ("RUN", "a && b"), ("USER", "1")]


# The unit


@functools.cache
def unit() -> dict[str, str]:
    pairs = (line.partition("=") for line in UNIT.read_text(encoding="utf-8").splitlines())
    return {name: value for name, _, value in pairs if name.isalnum()}


def needs_systemd() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is not installed")
    return found


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    analyze = needs_systemd()
    copy = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    copy.write_text(text.replace("/opt/keepwarm/bin/keepwarm", sys.executable), encoding="utf-8")
    done = subprocess.run(
        [analyze, "verify", copy], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_leaves_the_service_little_to_do_harm_with() -> None:
    done = subprocess.run(
        [needs_systemd(), "security", "--offline=true", "--threshold=15", UNIT],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_the_units_journal_and_caches_are_in_the_folders_that_it_may_write_to() -> None:
    environment = dict(each.split("=") for each in unit()["Environment"].split())
    assert state_folder(environment) == Path("/var/lib", unit()["StateDirectory"])
    assert environment["XDG_CACHE_HOME"] == "/var/cache"
    assert unit()["CacheDirectory"] == "keepwarm"


def test_the_unit_gives_turns_their_time_and_clients_their_sockets() -> None:
    (drain_s,) = [each.default for each in SERVE_SETTINGS if each.name == "drain_seconds"]
    assert int(unit()["TimeoutStopSec"]) >= drain_s + 10
    assert unit()["KillSignal"] == "SIGTERM"
    assert unit()["KillMode"] == "mixed"
    assert int(unit()["LimitNOFILE"]) >= 4 * DEFAULT_LIMITS.max_open_connections
