"""``config.json`` of each family, old and new spellings, and the defaults of absent fields.

What is refused is in ``test_weights.py``, where a whole folder is loaded.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import (
    Attention,
    Experts,
    Gated,
    Layer,
    LoadError,
    ModelConfig,
    Router,
)
from runtime.model.config_fields import read_json_object
from runtime.model.hf_config import read_model_config
from runtime.model.rope_config import RopeConfig

BASE = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 32,
    "max_position_embeddings": 4096,
}


def read(folder: Path, **fields: Any) -> Any:
    (folder / "config.json").write_text(json.dumps({**BASE, **fields}))
    return read_model_config(folder)


def test_absent_fields_have_the_family_defaults(tmp_path: Path) -> None:
    llama = read(tmp_path)
    assert (
        llama.layers
        == (Layer(mixer=Attention(heads=8, kv_heads=8, head_dim=8), feed_forward=Gated(size=32)),)
        * 4
    )
    assert not llama.tie_embeddings
    qwen2 = read(tmp_path, model_type="qwen2").layers[0].mixer
    assert (qwen2.bias, qwen2.output_bias, qwen2.norm) == (True, False, None)
    qwen3 = read(tmp_path, model_type="qwen3").layers[0].mixer
    assert (qwen3.head_dim, qwen3.norm, qwen3.bias) == (128, "each", False)
    assert windows_of(read(tmp_path, model_type="mistral")) == (4096,) * 4
    moe = read(tmp_path, model_type="qwen3_moe")
    mixer = Attention(heads=8, kv_heads=8, head_dim=8, norm="each")
    experts = Experts(
        router=Router(num_experts=128, per_token=8, normalise=False), each=Gated(size=768)
    )
    assert moe.layers == (Layer(mixer=mixer, feed_forward=experts),) * 4


def windows_of(config: ModelConfig) -> tuple[int | None, ...]:
    return tuple(layer.mixer.window for layer in config.layers)


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({"decoder_sparse_step": 2}, (False, True, False, True)),
        ({"mlp_only_layers": [0, 3]}, (False, True, True, False)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (False, False, False, True)),
    ],
)
def test_layers_with_experts(
    fields: dict[str, Any], layers: tuple[bool, ...], tmp_path: Path
) -> None:
    config = read(tmp_path, model_type="qwen3_moe", num_local_experts=16, **fields)
    found = [layer.feed_forward for layer in config.layers]
    assert tuple(isinstance(mlp, Experts) for mlp in found) == layers
    assert {mlp.router.num_experts for mlp in found if isinstance(mlp, Experts)} == {16}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_experts": 4, "num_experts_per_tok": 5}, "5 of 4 experts per token"),
        ({"mlp_only_layers": 3}, "field mlp_only_layers is 3, not a list"),
        ({"mlp_only_layers": [True]}, "field mlp_only_layers"),
        ({"decoder_sparse_step": 0}, "field decoder_sparse_step is 0"),
    ],
)
def test_experts_that_cannot_be_are_refused(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, model_type="qwen3_moe", **fields)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": None}, (None,) * 4),
        ({"model_type": "mistral", "sliding_window": 7}, (7, 7, 7, 7)),
        ({"model_type": "qwen2", "sliding_window": 7}, (None,) * 4),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 7,
                "max_window_layers": 3,
            },
            (None, None, None, 7),
        ),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 7,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (7, None, 7, None),
        ),
    ],
)
def test_windows(fields: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path) -> None:
    assert windows_of(read(tmp_path, **fields)) == windows


def test_layer_types_that_are_unknown_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="field layer_types"):
        read(tmp_path, model_type="mistral", sliding_window=7, layer_types=["chunked"] * 4)


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({"rope_theta": 5.0}, RopeConfig(theta=5.0)),
        (
            {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2}},
            RopeConfig(theta=5.0, kind="linear", factor=2.0),
        ),
        (
            {
                "rope_parameters": {
                    "rope_theta": 5.0,
                    "rope_type": "llama3",
                    "factor": 8,
                    "low_freq_factor": 1,
                    "high_freq_factor": 4,
                    "original_max_position_embeddings": 512,
                }
            },
            RopeConfig(theta=5.0, kind="llama3", factor=8.0, original_max_position=512),
        ),
        (
            {
                "rope_theta": 5.0,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
            },
            RopeConfig(
                theta=5.0,
                kind="yarn",
                factor=4.0,
                original_max_position=4096,
                attention_factor=1.5,
            ),
        ),
    ],
)
def test_rope_in_both_spellings(fields: dict[str, Any], rope: RopeConfig, tmp_path: Path) -> None:
    assert rope_of(read(tmp_path, **fields)) == rope


def rope_of(config: ModelConfig) -> RopeConfig:
    rope = config.layers[0].mixer.rope
    assert rope is not None
    return rope


LLAMA3 = {"low_freq_factor": 1, "high_freq_factor": 4}


@pytest.mark.parametrize(
    ("stated", "scaling", "context"),
    [
        (4096, None, 4096),
        (4096, {"rope_type": "default", "factor": 4.0}, 4096),
        # As model cards have users write it: what is stated is the length before.
        (32768, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        (40960, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        # As folders come that were made so: what is stated is the whole.
        (
            131072,
            {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
            131072,
        ),
        (4096, {"rope_type": "yarn", "factor": 2.5}, 10240),
        (4096, {"type": "linear", "factor": 4.0}, 16384),
        (16384, {"type": "linear", "factor": 4, "original_max_position_embeddings": 4096}, 16384),
        (
            131072,
            {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192} | LLAMA3,
            131072,
        ),
    ],
)
def test_the_context_is_what_the_scaling_makes_of_what_is_stated(
    stated: int, scaling: dict[str, Any] | None, context: int, tmp_path: Path
) -> None:
    old = read(tmp_path, max_position_embeddings=stated, rope_theta=5.0, rope_scaling=scaling)
    assert old.max_context_tokens == context
    if scaling is not None:
        new = {"rope_theta": 5.0, "rope_type": scaling.get("type"), **scaling}
        again = read(tmp_path, max_position_embeddings=stated, rope_parameters=new)
        assert (again.max_context_tokens, again.layers) == (context, old.layers)


@pytest.mark.parametrize("seed", range(40))
def test_a_context_is_the_original_times_the_factor_wherever_the_original_stands(
    seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    original, factor = draw.randrange(16, 1 << 17), draw.choice([1, 1.5, 2.0, 4, 32, 40.0])
    stated = draw.choice([original, int(original * factor), draw.randrange(16, 1 << 20)])
    kind = {draw.choice(["type", "rope_type"]): draw.choice(["yarn", "linear"]), "factor": factor}
    name = "original_max_position_embeddings"
    within = {"rope_scaling": {**kind, name: original}}
    beside = {"rope_scaling": kind, name: original}
    implied = {"rope_scaling": kind}
    for fields in (within, beside):
        found = read(tmp_path, max_position_embeddings=stated, **fields)
        assert found.max_context_tokens == int(original * factor)
    found = read(tmp_path, max_position_embeddings=original, **implied)
    assert found.max_context_tokens == int(original * factor)


def test_a_factor_beyond_reason_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"field rope_scaling\.factor is 1e\+300, not one that"):
        read(tmp_path, rope_scaling={"type": "yarn", "factor": 1e300})
    with pytest.raises(LoadError, match=r"factor 0\.5 out of bounds"):
        read(tmp_path, rope_scaling={"type": "yarn", "factor": 0.5})


def test_yarn_tempers_attention_by_its_factor(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 2.718281828459045}
    assert rope_of(read(tmp_path, rope_scaling=scaling)).attention_factor == pytest.approx(1.1)
    both = {**scaling, "mscale": 2.0, "mscale_all_dim": 1.0}
    assert rope_of(read(tmp_path, rope_scaling=both)).attention_factor == pytest.approx(1.2 / 1.1)


def test_a_file_of_unreasonable_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(LoadError, match="larger than"):
        read_json_object(path)


def test_json_nested_beyond_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * 100_000)
    with pytest.raises(LoadError, match="not JSON"):
        read_json_object(path)


@pytest.mark.parametrize(
    ("name", "most"),
    [("num_hidden_layers", 4096), ("hidden_size", 1 << 20), ("vocab_size", 1 << 24)],
)
def test_a_size_that_no_model_has_is_refused_before_anything_is_built(
    name: str, most: int, tmp_path: Path
) -> None:
    """2e9 layers were built for 100 s before the first missing tensor was noticed."""
    read(tmp_path, **{name: most})
    for size in (most + 1, 2_000_000_000):
        with pytest.raises(LoadError, match=f"field {name} is {size}, not at most {most}"):
            read(tmp_path, **{name: size})
