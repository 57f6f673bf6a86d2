"""The random models' shapes are what their names say, and fit the byte tokenizer."""

import pytest

from runtime.models.config import LoadError
from runtime.models.presets import random_model_config
from tests.support.byte_tokenizer import SPECIAL_TOKENS


@pytest.mark.parametrize(("name", "millions"), [("qwen3-100m", 100), ("qwen3-500m", 500)])
def test_sizes_are_near_their_names(name: str, millions: int) -> None:
    parameters = random_model_config(name).num_parameters / 1e6
    assert 0.7 * millions < parameters < 1.1 * millions


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-tiny",
        "qwen2-tiny",
        "llama-tiny",
        "mistral-tiny",
        "qwen3-moe-tiny",
        "qwen3-100m",
        "qwen3-500m",
    ],
)
def test_the_end_of_turn_is_the_tokenizers(name: str) -> None:
    config = random_model_config(name)
    assert config.shaping is not None
    assert config.shaping.num_plain == 256
    assert config.shaping.end_of_turn == 256 + SPECIAL_TOKENS.index("<|im_end|>")
    assert config.vocab_size >= 256 + len(SPECIAL_TOKENS)


def test_other_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(LoadError, match="there are: llama-tiny, mistral-tiny"):
        random_model_config("gpt")
