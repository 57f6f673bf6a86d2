"""From a configuration to an engine, or to one clear error."""

from pathlib import Path

import pytest

from runtime.config import EngineConfig
from runtime.engine_loader import EngineLoadError, load_engine


def test_the_engine_says_what_it_serves() -> None:
    config = EngineConfig(
        model="random:qwen3-tiny", dtype="float32", device="cpu", num_blocks=40, threads=1
    )
    info = load_engine(config).info
    assert (info.model_name, info.dtype, info.device) == ("random:qwen3-tiny", "float32", "cpu")
    assert info.kv_capacity_tokens == 40 * 16
    assert info.max_context_tokens == 640, "the pool is smaller than the model's context"
    assert (Path(info.tokenizer_folder) / "tokenizer.json").is_file()


def test_the_context_is_the_smallest_of_model_pool_and_setting() -> None:
    config = EngineConfig(
        model="random:qwen3-tiny", device="cpu", num_blocks=40, max_context_tokens=100, threads=1
    )
    assert load_engine(config).info.max_context_tokens == 100


@pytest.mark.parametrize("model", ["random:nothing", "/nonexistent/model"])
def test_a_model_that_cannot_be_served_is_one_error_that_names_it(model: str) -> None:
    with pytest.raises(EngineLoadError, match=model.rsplit(":", maxsplit=1)[-1]):
        load_engine(EngineConfig(model=model, device="cpu", threads=1))
