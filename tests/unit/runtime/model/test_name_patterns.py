"""Expressions for names fit what Python's fit, in bounded time."""

import random
import re
import time

import pytest

from runtime.model.name_patterns import UnknownSyntax, expression

NAMES = [
    "",
    "lm_head",
    "model.layers.0.self_attn.q_proj",
    "model.layers.11.mlp.gate",
    "model.layers.11.mlp.gate_proj",
    "model.layers.3.mlp.experts.7.down_proj",
    "model.visual.blocks.0",
]
WRITTEN = [
    "lm_head", "lm_head$", "^lm_head", ".*lm_head", ".*mlp\\.gate$", ".*mlp.gate", "model.layers.*",
    ".*\\.(gate|up|down)_proj$", "model\\.layers\\.(0|1|2)\\..*", ".*layers\\.[0-9]+\\.mlp.*",
    ".*\\.layers\\.\\d+\\.mlp\\.experts\\.\\d+\\..*", ".*(?:vision|visual).*", ".*gate(_proj)?$",
    "model.*?proj", "", "$", ".*\\.q_proj|lm_head", "[^v]*visual",
]  # fmt: skip


@pytest.mark.parametrize("text", WRITTEN)
def test_it_fits_what_the_same_expression_fits_in_python(text: str) -> None:
    for name in NAMES:
        assert expression(text).fits(name) == bool(re.match(text, name)), (text, name)


@pytest.mark.parametrize("seed", range(300))
def test_random_expressions_fit_what_they_fit_in_python(seed: int) -> None:
    draw = random.Random(seed)

    def written(depth: int) -> str:
        parts = []
        for _ in range(draw.randint(1, 3)):
            atom = draw.choice(["a", "b", ".", "\\.", "[ab]", "\\d", "[^a]"])
            parts.append(atom + draw.choice(["", "", "*", "+", "?"]))
            if depth and draw.random() < 0.25:
                inner = "|".join(written(depth - 1) for _ in range(draw.randint(1, 2)))
                parts.append(f"({inner})" + draw.choice(["", "?"]))
        return "".join(parts) + draw.choice(["", "$"] if depth == 2 else [""])

    text = written(2)
    pattern = expression(text)
    for _ in range(60):
        name = "".join(draw.choice("ab.1") for _ in range(draw.randint(0, 8)))
        assert pattern.fits(name) == bool(re.match(text, name)), (text, name)


@pytest.mark.parametrize(
    "text",
    ["(a+)+$", "(a|b)*", "(?=a)", "(?!a)", "a{3}", "a**", "*", "(", "a)", "[", "\\1", "\\", "[b-a]",
     "a" * 2000, "(a|b)" * 20, "(" * 5000],
)  # fmt: skip
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(UnknownSyntax):
        expression(text)


def test_an_expression_that_makes_python_search_for_ever_is_followed_in_a_moment() -> None:
    began = time.process_time()
    assert not expression(".*a.*a.*a.*a.*a.*a.*a.*b$").fits("a" * 500)
    assert time.process_time() - began < 5
