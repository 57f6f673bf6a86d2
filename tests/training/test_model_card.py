"""The model that ships is held to the figures of its card."""

import json
import re
from typing import Any

import pytest

from examples.train_agent_model.evaluate import evaluate
from runtime.model.sources import DEFAULT_MODEL


def card_figures(name: str) -> dict[str, Any]:
    """The JSON block of the model card that follows the marker ``name``."""
    card = (DEFAULT_MODEL / "README.md").read_text()
    block = re.search(rf"<!-- {name} -->\s*```json\n(.*?)```", card, re.DOTALL)
    assert block, f"the card has no block {name}"
    figures: dict[str, Any] = json.loads(block[1])
    return figures


@pytest.mark.slow
def test_it_keeps_the_figures_of_its_card() -> None:
    figures = card_figures("fixed seed")
    measured = evaluate(
        "default",
        episodes=figures["episodes"],
        long_sessions=figures["sessions"],
        plain_sessions=figures["plain_sessions"],
        seed=figures["seed"],
        dtype="float32",
        threads=1,
    )
    for name, stated in figures["bars"].items():
        assert measured[name] >= stated - 0.01, name
