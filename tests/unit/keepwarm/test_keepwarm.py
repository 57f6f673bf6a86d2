"""The name to import and the command: what they give, and what they do not load for it."""

import ast
import importlib
import subprocess
import sys

import pytest

import keepwarm
from keepwarm.commands.listed import COMMANDS
from tests.support.architecture import ROOT

STUB = ast.parse((ROOT / "keepwarm/__init__.pyi").read_text(encoding="utf-8"))
SERVER = {"runtime", "sessions", "cluster", "radix_cache", "kernels", "torch", "numpy", "xxhash"}


def stub_homes() -> dict[str, str]:
    """Of every name that the stub imports, the module it comes from."""
    return {
        alias.name: str(node.module)
        for node in STUB.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def stub_all() -> list[str]:
    (names,) = [node.value for node in STUB.body if isinstance(node, ast.Assign)]
    return list(ast.literal_eval(names))


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_stub_names_exactly_the_public_names() -> None:
    assert stub_all() == sorted(keepwarm.__all__)
    assert stub_homes().keys() == set(keepwarm.__all__)


@pytest.mark.parametrize("name", keepwarm.__all__)
def test_a_name_is_what_the_stub_says_it_is(name: str) -> None:
    module = importlib.import_module(stub_homes()[name])
    assert getattr(keepwarm, name) is getattr(module, name)
    assert name in dir(keepwarm)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        _ = keepwarm.Clinet


def test_importing_every_name_loads_nothing_of_the_server() -> None:
    program = (
        f"import sys; from keepwarm import {', '.join(keepwarm.__all__)}\n"
        f"print(*{{name.split('.')[0] for name in sys.modules}} & {SERVER!r})"
    )
    result = python(program)
    assert (result.stdout, result.stderr) == ("\n", "")


def test_the_bare_package_loads_no_client() -> None:
    result = python("import sys, keepwarm; print('tools_api' in sys.modules)")
    assert result.stdout == "False\n"


def test_the_asynchronous_client_loads_nothing_that_it_may_never_use() -> None:
    """Neither the synchronous half nor tools and their schemas; and nothing beside them that
    takes long and was not loaded with asyncio, pydantic and websockets."""
    theirs = "import asyncio, orjson; from pydantic import BaseModel; "
    program = (
        f"import sys; {theirs}from websockets.asyncio.client import connect\n"
        "before = set(sys.modules); from keepwarm import AsyncClient\n"
        "AsyncClient('http://127.0.0.1:1/v1').session()\n"
        "print(*set(sys.modules) - before)"
    )
    result = python(program)
    assert result.stderr == ""
    loaded = result.stdout.split()
    assert {name.split(".")[0] for name in loaded} == {"keepwarm", "tools_api"}
    unused = (
        "limits",
        "tools",
        "custom_input",
        "sdk.portal",
        "sdk.sync_client",
        "sdk.sync_session",
    )
    assert not {f"tools_api.{name}" for name in (*unused, "sdk.tool_making")} & set(loaded)


def test_the_command_tells_its_version() -> None:
    result = python("from keepwarm.__main__ import main; main(['--version'])")
    assert result.stdout == f"keepwarm {keepwarm.__version__}\n"


@pytest.mark.parametrize("words", [["serve"], ["keys", "--help"], ["top"]])
def test_whoever_interrupts_it_while_it_is_loaded_sees_no_traceback(words: list[str]) -> None:
    result = python(
        "import builtins, sys\nfrom keepwarm.__main__ import main\n"
        "def interrupted(*_): raise KeyboardInterrupt\n"
        f"builtins.__import__ = interrupted; sys.exit(main({words!r}))"
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.tail
@pytest.mark.parametrize("missing", ["click", "numpy", "prometheus_client"])
def test_without_the_server_the_command_says_in_one_line_what_to_install(missing: str) -> None:
    result = python(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from keepwarm.__main__ import main; sys.exit(main(['serve', '--help']))"
    )
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert f"(no {missing})" in line
    assert line.endswith("pip install 'keepwarm[server]'")


BASE = "import sys; sys.modules['click'] = None\nfrom keepwarm.__main__ import main; "


def test_without_the_server_the_command_tells_its_version_and_what_there_would_be() -> None:
    result = python(BASE + "sys.exit(main(['--version']))")
    told = (result.returncode, result.stdout, result.stderr)
    assert told == (0, f"keepwarm {keepwarm.__version__}\n", "")
    result = python(BASE + "sys.exit(main(['--help']))")
    assert (result.returncode, result.stderr) == (0, "")
    for name in COMMANDS:
        assert f"  {name} " in result.stdout
    assert "pip install 'keepwarm[server]'" in result.stdout
    assert python(BASE + "sys.exit(main([]))").returncode == 2


def test_to_tell_its_version_the_command_loads_nothing_of_the_server() -> None:
    result = python(
        "import sys, keepwarm.__main__\n"
        f"print(*{{name.split('.')[0] for name in sys.modules}} & {SERVER | {'click'}!r})"
    )
    assert (result.stdout, result.stderr) == ("\n", "")


def test_a_module_of_ours_that_is_missing_is_not_taken_for_the_base_install() -> None:
    result = python(
        "import sys; sys.modules['runtime.messages'] = None\n"
        "from keepwarm.__main__ import main; sys.exit(main(['serve', '--help']))"
    )
    assert result.returncode == 1
    assert "ModuleNotFoundError" in result.stderr


def test_top_is_there_without_the_server_and_says_what_it_needs_without_its_extra() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'h11']))\n"
    run = "from keepwarm.__main__ import main; sys.exit(main(['top', '--help']))"
    result = python(blocked + run)
    assert (result.returncode, result.stderr) == (0, "")
    assert "--every SECONDS" in result.stdout
    result = python("import sys; sys.modules['textual'] = None\n" + run)
    assert result.returncode == 1
    assert result.stderr.endswith("pip install 'keepwarm[cli]'\n")


LIGHT = ("torch", "numpy", "xxhash", "tokenizers", "h11", "llguidance", "prometheus_client")
"""Packages without which the extra ``cli`` is."""


@pytest.mark.samples(2)
@pytest.mark.parametrize("command", ["chat", "keys", "top", "config"])
def test_a_command_of_the_extra_cli_is_there_without_the_server(command: str) -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({LIGHT!r}))\n"
    run = f"from keepwarm.__main__ import main; sys.exit(main([{command!r}, '--help']))"
    result = python(blocked + run)
    assert (result.returncode, result.stderr) == (0, "")
    result = python("import sys; sys.modules['click'] = sys.modules['textual'] = None\n" + run)
    assert result.returncode == 1
    assert result.stderr.endswith("pip install 'keepwarm[cli]'\n")


@pytest.mark.tail
@pytest.mark.parametrize("missing", ["numpy", "xxhash"])
def test_sessions_wants_two_packages_beside_the_extra_cli_and_no_more(missing: str) -> None:
    run = "from keepwarm.__main__ import main; sys.exit(main(['sessions', 'list', '--help']))"
    blocked = f"import sys; sys.modules.update(dict.fromkeys({LIGHT!r}))\n"
    result = python(blocked + f"del sys.modules['numpy'], sys.modules['xxhash']\n{run}")
    assert (result.returncode, result.stderr) == (0, "")
    result = python(f"import sys; sys.modules[{missing!r}] = None\n{run}")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"keepwarm: error: 'sessions' reads a journal with numpy and xxhash (no {missing}): "
        "pip install numpy xxhash\n"
    )


def test_top_says_that_it_needs_a_terminal() -> None:
    result = python("import sys; from keepwarm.__main__ import main; sys.exit(main(['top']))")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "keepwarm: error: top needs a terminal\n"


def test_a_server_loads_nothing_of_a_cluster() -> None:
    program = (
        "import sys, keepwarm.commands.serve, keepwarm.commands.registry, sessions.command.serve\n"
        "print(*{name.split('.')[0] for name in sys.modules} & {'cluster', 'ray', 'psycopg'})"
    )
    result = python(program)
    assert (result.returncode, result.stdout.split()) == (0, []), result.stderr
