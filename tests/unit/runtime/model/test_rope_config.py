"""A description of positions holds together, or is refused."""

from typing import Any

import pytest

from runtime.model.rope_config import RopeConfig


@pytest.mark.parametrize(
    "rope",
    [
        {"theta": 0},
        {"factor": 0.5},
        {"kind": "llama3", "factor": 8.0},
        {"kind": "llama3", "original_max_position": 9, "high_freq_factor": 1.0},
        {"kind": "yarn"},
        {"kind": "yarn", "original_max_position": 9, "theta": 1.0},
        {"query_beta": 0.1},
        {"rotated": 3},
        {"rotated": 0},
        {"kind": "longrope", "factors": (1.0, 0.0)},
    ],
)
def test_rope_without_what_it_needs_is_refused(rope: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rope"):
        RopeConfig(**rope)
