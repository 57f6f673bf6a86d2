"""What the README says of the tree is so."""

import importlib.metadata
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from keepwarm.commands.main import COMMANDS
from runtime.model.hf_config import FAMILIES
from tests.support.architecture import PACKAGES, ROOT
from tools import draw_overview
from tools.line_ledger import measure_folder

README = (ROOT / "README.md").read_text(encoding="utf-8")
CLIENTS = (ROOT / "docs/clients.md").read_text(encoding="utf-8")


def stated() -> dict[str, int]:
    """Thousand lines by package."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| (\d+) \|$", README, re.MULTILINE)
    return {name: int(count) for name, count in rows}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_as_large_as_it_says(package: str) -> None:
    lines = sum(module.lines for module in measure_folder(package))
    assert abs(lines - 1000 * stated()[package]) <= max(600, 0.15 * lines)


def test_every_package_is_listed_and_no_other() -> None:
    assert set(stated()) == set(PACKAGES)


def test_the_picture_is_what_the_script_draws_and_well_formed() -> None:
    drawn = (ROOT / "docs/overview.svg").read_text(encoding="utf-8")
    assert drawn == draw_overview.overview()
    root = ET.fromstring(drawn)
    assert root.attrib["viewBox"] == f"0 0 {draw_overview.WIDTH} {draw_overview.HEIGHT}"
    assert "prefers-color-scheme: dark" in drawn


def test_every_client_of_the_table_is_one_that_is_tried() -> None:
    table = README.split("## Clients")[1].split("## Beside others")[0]
    rows = [line for line in table.splitlines() if line.startswith(("| `", "| AI SDK"))]
    assert len(rows) == 8
    for row in rows:
        for name in re.findall(r"`([^`]+)`", row.split("|")[1]):
            assert f"| `{name}` (" in CLIENTS, name


def test_every_family_that_is_read_is_in_the_table_of_what_runs_and_no_other() -> None:
    table = README.split("## A model of your own")[1].split("## Clients")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][2:]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    wrappers = {"mistral3", "gemma3", "gemma4", "gemma4_unified", "kimi_k25", "minimax_m3_vl"}
    wrappers |= {"lfm3_vl", "step3p7"}
    assert named - wrappers == set(FAMILIES)
    assert all(re.fullmatch(r" \d{4}-\d\d-\d\d ", row[4]) for row in rows)
    assert all(row[3].strip() for row in rows)


def test_every_command_it_names_is_there() -> None:
    named = set(re.findall(r"(?:^|`)keepwarm (\w+)", README, re.MULTILINE))
    assert {"serve", "chat", "demo", "doctor"} <= named
    assert named <= COMMANDS.keys()


def test_what_it_has_installed_for_the_stock_client_can_open_a_websocket() -> None:
    extra = re.search(r"`pip install 'openai\[(\w+)\]'`", README)
    assert extra is not None
    needed = importlib.metadata.requires("openai") or []
    assert any(line.startswith("websockets") and extra[1] in line for line in needed)


def test_its_two_commands_do_the_set_up_and_ci_runs_them_as_they_stand_there() -> None:
    typed = set(re.findall(r"^(make \w+)", README, re.MULTILINE))
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert typed == {"make demo", "make test"}
    assert typed <= set(ci)


def test_the_tools_file_it_shows_has_a_tool() -> None:
    (program,) = re.findall(r"```py\n(.*?)```", README, re.DOTALL)
    check = "\nassert get_price.name == 'get_price' and get_price('desk') == {'price': 180}"
    result = subprocess.run([sys.executable, "-c", program + check], cwd=ROOT, check=False)
    assert result.returncode == 0
