"""Values and levels of JSON, counted before it is parsed."""

import json
import random
from typing import Any

import pytest

from tools_api import json_bounds
from tools_api.json_bounds import BeyondBounds, bounded


def random_value(rng: random.Random, depth: int) -> Any:
    match rng.randrange(6 if depth else 4):
        case 0:
            return rng.randrange(1000)
        case 1:
            return None
        case 2 | 3:
            return "".join(rng.choices(["a", '"', "\\", "[", "{", ",", "]", "é"], k=5))
        case 4:
            return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {f"k{n},[{{": random_value(rng, depth - 1) for n in range(rng.randrange(4))}


def counted(value: Any) -> tuple[int, int, int]:
    """Strings, values as they are counted, levels: the plain way."""
    if isinstance(value, str):
        return 1, 0, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0
    inner = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    strings = sum(each[0] for each in inner) + (len(value) if isinstance(value, dict) else 0)
    values = sum(each[1] for each in inner) + 1 + max(len(value) - 1, 0)
    return strings, values, 1 + max((each[2] for each in inner), default=0)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
def test_bounds_are_met_to_the_value_and_the_level(
    seed: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_bounds, "_CHUNK_BYTES", chunk_bytes)
    value = [random_value(random.Random(seed), 5) for _ in range(4)]
    text = json.dumps(value, ensure_ascii=seed % 2 == 0).encode()
    strings, values, levels = counted(value)
    most = max(strings, values)
    bounded(text, most_values=most, most_levels=levels)
    with pytest.raises(BeyondBounds, match="more than"):
        bounded(text, most_values=most - 1, most_levels=levels)
    with pytest.raises(BeyondBounds, match="nested deeper"):
        bounded(text, most_values=most, most_levels=levels - 1)


@pytest.mark.parametrize("text", [b"", b'"', b'{"a', b"]]", b'"\\', b"[[[", b'["]"'])
def test_text_that_is_no_json_is_looked_at_without_harm(text: bytes) -> None:
    bounded(text, most_values=10, most_levels=10)
