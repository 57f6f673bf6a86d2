"""docs/sdk_reference.md is what its tool writes, and has every public name."""

import re

import keepwarm
from tests.support.architecture import ROOT
from tools import sdk_reference


def test_the_reference_is_current() -> None:
    written = (ROOT / "docs/sdk_reference.md").read_text(encoding="utf-8")
    assert written == sdk_reference.reference(), "run python -m tools.sdk_reference"


def test_every_public_name_has_a_section() -> None:
    headings = set(re.findall(r"^## `(\w+)`$", sdk_reference.reference(), re.MULTILINE))
    assert headings == {name for name in keepwarm.__all__ if not name.startswith("_")}


def test_nothing_of_how_python_prints_objects_is_left() -> None:
    assert not re.findall(r"<class|<function| at 0x|typing\.", sdk_reference.reference())
