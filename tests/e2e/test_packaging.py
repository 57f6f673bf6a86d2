"""What an installed keepwarm consists of, and what the base install needs."""

import email.parser
import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.architecture import PACKAGES, ROOT

BASE_INSTALL = {"websockets", "orjson", "pydantic"}
SERVER_ONLY = ("torch", "numpy", "xxhash", "tokenizers", "safetensors", "llguidance", "h11",
               "prometheus_client", "uvloop", "tqdm", "click", "runtime", "radix_cache", "sessions",
               "cluster", "kernels")  # fmt: skip
USERS_PROGRAM = """\
from typing import Any, Literal, assert_type

from keepwarm import ApiError, Client, LoopResult, Response, TurnFailed, tool


@tool
def price(product: str) -> float:
    return len(product)


def main() -> None:
    with Client() as client:
        session = client.session(instructions="Be brief.")
        try:
            assert_type(session.respond("Hello", max_output_tokens=8), Response)
        except (ApiError, TurnFailed) as error:
            assert_type(error.code, str | None)
        assert_type(session.run("Hello", tools=[price]), LoopResult[Any])
        assert_type(session.run("Hello", output_type=list[int]).output, list[int])
        assert_type(session.run("Hello", output_type=int | None), LoopResult[Any])
        assert_type(session.run("Hello", output_type=Literal["a", "b"]), LoopResult[Any])
        client.session(instruction="misspelt")  # type: ignore[call-arg]
"""
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


def test_the_wheel_holds_the_packages_and_nothing_beside_them(wheel: zipfile.Path) -> None:
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
    assert "keepwarm = keepwarm.__main__:main" in (folder / "entry_points.txt").read_text()


def test_the_version_keeps_away_from_the_other_distribution_of_that_name() -> None:
    """Another distribution named kernels has 0.9 to 0.19, and others look at the number."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    major, minor = (int(part) for part in version.split(".")[:2])
    assert major >= 1 or minor <= 8


def test_transformers_does_not_take_our_kernels_for_the_other_distribution() -> None:
    program = "from transformers.utils import is_kernels_available as a; raise SystemExit(a())"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert result.returncode == 0


@pytest.fixture(scope="module")
def base_install(wheel: zipfile.Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with the wheel and what it needs without extras, no more."""
    return installed(wheel, tmp_path_factory.mktemp("base"), sorted(BASE_INSTALL))


@pytest.fixture(scope="module")
def server_install(wheel: zipfile.Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Likewise with the extra ``server``."""
    needed = [*sorted(BASE_INSTALL), *extra("server")]
    return installed(wheel, tmp_path_factory.mktemp("server"), needed)


@pytest.fixture(scope="module")
def cli_install(wheel: zipfile.Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Likewise with the extra ``cli``."""
    needed = [*sorted(BASE_INSTALL), *extra("cli")]
    return installed(wheel, tmp_path_factory.mktemp("cli"), needed)


def extra(name: str) -> list[str]:
    """The packages that an extra names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [name_of(line) for line in project["optional-dependencies"][name]]


def installed(wheel: zipfile.Path, folder: Path, needed: list[str]) -> Path:
    """The ``bin`` of a new environment with the wheel and ``needed``.

    The dependencies are links to what this environment has, so that no index is asked.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in closure(needed):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install",
         "--quiet", "--no-compile", "--no-deps", "--no-index", str(wheel.root.filename)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return folder / "bin"


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0]


def closure(needed: list[str]) -> list[importlib.metadata.Distribution]:
    """What is needed, and what that needs in turn on this machine."""
    found: dict[str, importlib.metadata.Distribution] = {}
    open_names = list(needed)
    while open_names:
        name = open_names.pop()
        if name not in found:
            try:
                found[name] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # of another platform, or of another build of torch
            lines = [line for line in found[name].requires or () if "extra ==" not in line]
            open_names += map(name_of, lines)
    return list(found.values())


def run_base(command: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the base install where nothing of this tree can be imported."""
    return subprocess.run(
        [command, *words], cwd=command.parent, env={}, capture_output=True, text=True, check=False
    )


def test_the_client_runs_in_the_base_install(base_install: Path) -> None:
    program = f"""
import sys
from keepwarm import AsyncClient, Client, Session, __version__, tool
assert __version__ == "0.1.0"
assert sys.modules["tools_api.sdk.client"].__file__.startswith({str(base_install.parent)!r})
def look_up(name: str) -> str: ...
assert tool(look_up).name == "look_up"
print(*{{name.split(".")[0] for name in sys.modules}} & {set(SERVER_ONLY)!r})
"""
    result = run_base(base_install / "python", "-c", program)
    assert (result.stdout, result.stderr) == ("\n", "")


@pytest.mark.parametrize("command", [("keepwarm",), ("python", "-m", "keepwarm")], ids=" ".join)
def test_the_command_of_the_base_install_says_what_to_install(
    command: tuple[str, ...], base_install: Path
) -> None:
    result = run_base(base_install / command[0], *command[1:], "serve")
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(r"keepwarm: error: .*: pip install 'keepwarm\[server\]'\n", result.stderr)


def test_the_command_of_the_base_install_tells_its_version(base_install: Path) -> None:
    result = run_base(base_install / "keepwarm", "--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, "keepwarm 0.1.0\n", "")


def test_the_extra_cli_takes_little_and_has_nothing_of_the_server(
    wheel: zipfile.Path, cli_install: Path
) -> None:
    """As it lies on the disk, without pip and what it compiles."""
    distributions = closure([*sorted(BASE_INSTALL), *extra("cli")])
    names_ = {each.metadata["Name"].lower() for each in distributions}
    assert not names_ & {"torch", "numpy", "tokenizers", "xxhash", "h11"}
    files = [each.locate_file(file) for each in distributions for file in each.files or ()]
    sizes = [
        Path(str(file)).stat().st_size
        for file in files
        if "__pycache__" not in str(file) and Path(str(file)).is_file()
    ]
    ours = sum(each.file_size for each in wheel.root.infolist())
    megabytes = (sum(sizes) + ours) / 1e6
    print(f"{megabytes:.1f} MB, {ours / 1e6:.1f} of them ours")
    assert megabytes <= 60
    version = run_base(cli_install / "keepwarm", "--version")
    assert (version.returncode, version.stdout) == (0, "keepwarm 0.1.0\n")
    made = run_base(cli_install / "keepwarm", "keys", "new", "--name", "ci", "--tenant", "acme")
    assert made.returncode == 0, made.stderr
    assert 'tenant = "acme"' in made.stdout
    assert "needs a terminal" in run_base(cli_install / "keepwarm", "top").stderr
    lacking = run_base(cli_install / "keepwarm", "sessions", "list")
    assert (lacking.returncode, lacking.stderr.count("\n")) == (1, 1)
    assert "numpy and xxhash" in lacking.stderr
    served = run_base(cli_install / "keepwarm", "serve")
    assert served.stderr.endswith("pip install 'keepwarm[server]'\n")


(USERS_TOOLS,) = re.findall(r"```py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
INSTRUCTIONS = "You are the assistant of a furniture shop. Answer with the tools."


def users_environment(home: Path) -> dict[str, str]:
    """A new home folder, but for the kernels that are compiled here already."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": cache}


def test_a_new_user_has_an_agent_with_a_tool_of_his_own_in_five_commands(
    server_install: Path, cli_install: Path, tmp_path: Path
) -> None:
    """``python -m venv``, ``pip install``, then the three below, where nothing of the tree is.
    Whoever has the extra ``cli`` alone, in another environment, talks to that server as well."""
    tools, log = tmp_path / "my_tools.py", tmp_path / "log"
    tools.write_text(USERS_TOOLS)
    home = users_environment(tmp_path)

    def keepwarm(*words: str, **options: Any) -> Any:
        run = options.pop("run", subprocess.run)
        command = [options.pop("install", server_install) / "keepwarm", *words]
        return run(command, cwd=tmp_path, env=home, text=True, **options)

    doctor = keepwarm("doctor", "--port", "0", capture_output=True)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    with (
        log.open("w") as written,
        keepwarm(
            *("serve", "--port", "0", "--threads", "1"),
            run=subprocess.Popen, stdout=subprocess.PIPE, stderr=written,
        ) as server,
    ):  # fmt: skip
        try:
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None, log.read_text()
            chats = [
                keepwarm(
                    *("chat", "--url", address[0], "--tools", str(tools)),
                    *("--instructions", INSTRUCTIONS),
                    input="What is the price of desk?\n", capture_output=True, timeout=120,
                    install=install,
                )
                for install in (server_install, cli_install)
            ]  # fmt: skip
            server.terminate()
            assert server.wait(30) == 0
        finally:
            server.kill()
    for chat in chats:
        assert chat.returncode == 0, chat.stdout + chat.stderr
        assert '-> get_price({"product": "desk"})' in chat.stdout
        assert "The price of desk is 180." in chat.stdout


def test_the_demo_plays_from_the_wheel(server_install: Path, tmp_path: Path) -> None:
    played = subprocess.run(
        [server_install / "keepwarm", "demo", "--sessions", "1", "--model", "random:qwen3-tiny"],
        cwd=tmp_path, env=users_environment(tmp_path),
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert played.returncode == 0, played.stdout + played.stderr
    assert re.search(r"\d+ turns: \d+ input tokens", played.stdout)


def test_a_users_checker_sees_the_types(base_install: Path, tmp_path: Path) -> None:
    """With the options of ``mypy --strict``, an ignore that nothing needs is an error."""
    (tmp_path / "program.py").write_text(USERS_PROGRAM, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"),
         "--python-executable", str(base_install / "python"), "program.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


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
