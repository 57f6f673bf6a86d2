"""Every example runs as its own docstring says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from keepwarm.demo.child_server import ChildServer, child_server
from tests.support.architecture import ROOT

SAYS = {
    "minimal_turn.py": r"\[\d+ tokens in, .*\[\d+ tokens in, [1-9]\d* of them cached",
    "tool_loop.py": r'(get_price|multiply)\(\{.*\}\) -> \{"(price|result)":.*% of their input',
    "structured_output.py": r"\S.* \((low|normal|high)\)\n  +\d+ x ['\"]",
    "budget.py": r"turn \d+ was not started: rate_limit_exceeded.*\n60 of 60 tokens spent",
    "fork.py": r"parent: \d+ tokens computed once\n(What is rule \d+\? [1-9]\d* of \d+ .*\n){3}",
}


def test_every_example_is_tested_and_short() -> None:
    files = {path.name: path for path in (ROOT / "examples").glob("*.py")}
    files.pop("__init__.py", None)
    assert files.keys() == SAYS.keys()
    for path in files.values():
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60, path.name


@pytest.mark.parametrize("name", SAYS)
def test_an_example_does_what_it_says(name: str, server: ChildServer) -> None:
    ran = subprocess.run(
        [sys.executable, f"examples/{name}", server.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(SAYS[name], ran.stdout, re.DOTALL), ran.stdout


def readme_programs() -> list[str]:
    """The loop with our own client, and with the stock one."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run_readme(url: str) -> str:
    """What the README's loop with the stock client prints against the server at ``url``."""
    _, program = readme_programs()
    assert len(program.splitlines()) <= 19
    program = program.replace("http://127.0.0.1:8080/v1", url)
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_loop_in_the_readme_runs_as_it_stands(server: ChildServer) -> None:
    printed = run_readme(server.url)
    assert "ResponseFunctionToolCall" in printed
    assert printed.count("ResponseUsage") >= 2


def test_the_loop_in_the_readme_prints_the_right_answer(tmp_path: Path) -> None:
    options = ["--kv-cache-mib", "64", "--threads", "1"]
    own, _ = readme_programs()
    assert len(own.splitlines()) <= 15
    with child_server(options, log=tmp_path / "log") as default_model:
        assert "The price of desk is 180." in run_readme(default_model.url)
        program = own.replace("Client()", f"Client({default_model.url!r})")
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert ran.stderr == ""
    assert ran.stdout == "The price of desk is 180.\nThe price of lamp is 24.\n"


def test_the_guides_first_program_prints_the_right_answer(tmp_path: Path) -> None:
    text = (ROOT / "docs/sdk.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert len(program.splitlines()) <= 15
    options = ["--kv-cache-mib", "64", "--threads", "1"]
    with child_server(options, log=tmp_path / "log") as default_model:
        program = program.replace("Client()", f"Client({default_model.url!r})")
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert (ran.stdout, ran.stderr) == ("The price of desk is 180.\n", "")


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ([], "It chooses its\ncalls itself"),
        (["--model", "random:qwen3-tiny"], "weights are random"),
    ],
)
def test_the_demo_plays_one_session_and_then_eight(options: list[str], note: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "keepwarm", "demo", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    assert note in ran.stdout
    rows = re.findall(r"^(first|s\d+) +\d+ +(\d+) +(\d+) +\d+ +\d+%", ran.stdout, re.MULTILINE)
    assert {name for name, _, _ in rows} == {"first", *(f"s{n}" for n in range(1, 9))}
    single = [(int(found), int(cached)) for name, found, cached in rows if name == "first"]
    assert len(single) >= 4
    assert all(cached > 0.5 * found for found, cached in single[1:])
    assert re.search(r"(get_price|multiply|get_time)\(.*\) -> {", ran.stdout)
    assert re.search(r"\d+ turns: \d+ input tokens, of which \d+ were computed", ran.stdout)
    assert "Cost $" in ran.stdout
