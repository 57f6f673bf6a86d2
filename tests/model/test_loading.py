"""From a configuration to an engine, or to one clear error."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.config import EngineConfig
from runtime.model.batch import SequenceInput
from runtime.model.runner import load_runner
from runtime.model.sources import DEFAULT_MODEL
from runtime.process.loading import EngineLoadError, load_engine


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


@pytest.mark.parametrize(("asked", "warnings"), [(None, 0), (640, 0), (641, 1)])
def test_a_context_that_the_kv_memory_does_not_hold_is_a_warning_with_both_numbers(
    asked: int | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(
        model="random:qwen3-tiny", device="cpu", num_blocks=40, max_context_tokens=asked, threads=1
    )
    with caplog.at_level(logging.WARNING, "runtime.process.loading"):
        assert load_engine(config).info.max_context_tokens == 640
    assert len(caplog.records) == warnings
    if warnings:
        assert "--max-context-tokens is 641, the KV memory holds 640 tokens" in caplog.text


def test_a_context_that_the_model_does_not_have_is_refused_with_both_numbers() -> None:
    config = EngineConfig(
        model="random:qwen3-tiny", device="cpu", num_blocks=40, max_context_tokens=8193, threads=1
    )
    with pytest.raises(EngineLoadError, match=r"max_context_tokens is 8193, .* of 8192 tokens"):
        load_engine(config)


@pytest.mark.parametrize(
    ("asked", "plain", "fewer"),
    [
        ({"quantization": "int8"}, {}, 0.55),
        ({"quantization": "int4"}, {"quantization": "int8"}, 0.6),
        ({"kv_cache_dtype": "int8"}, {}, 0.65),
    ],
)
def test_fewer_bits_are_flags_and_what_they_serve_is_smaller(
    asked: dict[str, Any], plain: dict[str, Any], fewer: float
) -> None:
    def sizes(settings: dict[str, Any]) -> tuple[int, int]:
        config = EngineConfig(
            model="random:qwen3-tiny",
            dtype="bfloat16",
            device="cpu",
            num_blocks=40,
            threads=1,
            **settings,
        )
        runner = load_runner(config)
        steps = SequenceInput(
            tokens=np.arange(40, dtype=np.int32),
            start=0,
            block_table=np.arange(3, dtype=np.int32),
            num_logits=1,
        )
        assert runner.run([steps]).isfinite().all()
        return runner.model.decoder.step_weight_bytes, runner.pool.num_bytes

    which = 1 if "kv_cache_dtype" in asked else 0
    assert sizes(asked)[which] < fewer * sizes(plain)[which]


@pytest.mark.parametrize("setting", ["quantization", "kv_cache_dtype"])
def test_fp8_is_refused_on_a_cpu_with_the_flag_that_is_for_one(setting: str) -> None:
    settings: dict[str, Any] = {setting: "fp8"}
    config = EngineConfig(
        model="random:qwen3-tiny", device="cpu", num_blocks=40, threads=1, **settings
    )
    with pytest.raises(EngineLoadError, match="int8"):
        load_engine(config)


@pytest.mark.parametrize("model", ["random:nothing", "/nonexistent/model"])
def test_a_model_that_cannot_be_served_is_one_error_that_names_it(model: str) -> None:
    with pytest.raises(EngineLoadError, match=model.rsplit(":", maxsplit=1)[-1]):
        load_engine(EngineConfig(model=model, device="cpu", threads=1))


def test_a_damaged_file_that_nobody_has_thought_of_is_one_line_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in DEFAULT_MODEL.iterdir():
        (tmp_path / file.name).symlink_to(file)

    def load(folder: Path, **_: object) -> None:
        raise TypeError(f"{folder}: 'int' object is not iterable")

    monkeypatch.setattr("runtime.process.loading.Tokenizer.load", load)
    with pytest.raises(
        EngineLoadError, match=r"cannot be loaded: TypeError in \S+, line \d+: "
    ) as e:
        load_engine(EngineConfig(model=str(tmp_path), device="cpu", num_blocks=40, threads=1))
    assert str(tmp_path) in str(e.value)
    assert "\n" not in str(e.value)


def test_what_is_done_next_is_told_in_order() -> None:
    stages: list[str] = []
    config = EngineConfig(model="random:qwen3-tiny", device="cpu", num_blocks=40, threads=1)
    load_engine(config, enters=stages.append)
    assert stages == [
        "reading the folder",
        "loading the model",
        "reading the tokenizer",
        "timing the first steps",
        "making the caches",
    ]
