"""What Gemma 4's folders say; the arithmetic is ``test_family_parity``'s."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from runtime.model.batch import SequenceInput
from runtime.model.config import Attention, Experts, Gated, LayerInputs, LoadError, ModelConfig
from runtime.model.hf_config import read_model_config
from runtime.model.layers import WeightBits
from runtime.model.presets import PRESETS
from runtime.model.rope_config import RopeConfig
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.config_folders import BASE, read_folder, seen
from tests.support.quantised_folders import FORMATS, widened_folder, write_folder

CPU = torch.device("cpu")
PLAIN = {"hidden_size_per_layer_input": 0}
ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 5.0,
        "partial_rotary_factor": 0.25,
        "factor": 2.0,
    },
}


def read(folder: Path, **changes: Any) -> ModelConfig:
    """Six layers, the third and the last of which see everything."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    own = {"layer_types": kinds, "head_dim": 16, "global_head_dim": 32, "sliding_window": 9}
    return read_folder(folder, "gemma4_text", **{**PLAIN, **own, **changes})


def heads(config: ModelConfig) -> list[tuple[int, int]]:
    return [(mixer.kv_heads, mixer.head_dim) for mixer in config.attention]


def test_what_is_left_out_has_the_familys_defaults(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "gemma4_text")
    assert seen(config) == [512] * 5 + [None]
    assert heads(config) == [(4, 256)] * 5 + [(4, 512)]
    assert config.layer_inputs == LayerInputs(vocabulary=262144, size=256)
    assert config.tie_embeddings
    assert config.embedding_scale == 8.0
    assert config.logit_cap is None
    sliding, full = config.attention[0], config.attention[5]
    assert sliding.rope == RopeConfig(theta=10000.0)
    assert full.rope == RopeConfig(theta=1000000.0, kind="proportional", rotated=128)
    for layer in config.layers:
        mixer = layer.mixer
        assert (layer.norms, layer.learnt_scale) == ("both", True)
        assert (mixer.scale, mixer.norm, mixer.value_norm) == (1.0, "each", True)
        assert not mixer.keys_are_values
        assert layer.feed_forward == Gated(size=32, activation="gelu_tanh")


def test_a_unified_models_text_part_is_the_same_without_layers_inputs(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "gemma4_unified_text")
    assert seen(config) == [1024] * 5 + [None]
    assert config.layer_inputs is None
    with pytest.raises(LoadError, match="hidden_size_per_layer_input is 8, not 0 or null"):
        read_folder(tmp_path, "gemma4_unified_text", hidden_size_per_layer_input=8)
    with pytest.raises(LoadError, match="enable_moe_block is True, not false or null"):
        read_folder(tmp_path, "gemma4_unified_text", enable_moe_block=True)


def test_positions_are_read_for_both_kinds_of_layers(tmp_path: Path) -> None:
    config = read(tmp_path, rope_parameters=ROPES)
    assert config.attention[0].rope == RopeConfig(theta=7.0)
    full = RopeConfig(theta=5.0, kind="proportional", rotated=8, factor=2.0)
    assert config.attention[2].rope == full
    assert config.max_context_tokens == 4096


def test_heads_of_layers_that_see_everything_are_read_in_both_spellings(tmp_path: Path) -> None:
    assert heads(read(tmp_path)) == [(4, 16), (4, 16), (4, 32)] * 2
    same = {"attention_k_eq_v": True, "num_global_key_value_heads": 2}
    old = read(tmp_path, **same)
    assert heads(old) == [(4, 16), (4, 16), (2, 32)] * 2
    assert [mixer.keys_are_values for mixer in old.attention] == [False, False, True] * 2
    assert heads(read(tmp_path, num_global_key_value_heads=2)) == heads(read(tmp_path))
    own = {"head_dim": 32, "num_key_value_heads": 2}
    new = read(
        tmp_path,
        attention_k_eq_v=True,
        global_head_dim=None,
        per_layer_config={"2": own, "5": own},
    )
    assert new == old


def test_the_last_layers_share_the_keys_of_the_last_of_their_kind(tmp_path: Path) -> None:
    config = read(tmp_path, num_kv_shared_layers=3, use_double_wide_mlp=True)
    assert [mixer.shares for mixer in config.attention] == [None, None, None, 1, 1, 2]
    assert [layer.feed_forward.size for layer in config.layers] == [32] * 3 + [64] * 3
    assert [group.layers for group in config.kv_groups] == [2, 1]
    plain = read(tmp_path, num_kv_shared_layers=3)
    assert {layer.feed_forward.size for layer in plain.layers} == {32}


def test_experts_stand_beside_an_mlp(tmp_path: Path) -> None:
    sizes = {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 24}
    config = read(tmp_path, enable_moe_block=True, **sizes)
    experts = config.layers[0].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.apart, experts.router.scaled, experts.router.normalise) == (True,) * 3
    assert (experts.each.size, experts.shared) == (24, Gated(size=32, activation="gelu_tanh"))
    assert not read(tmp_path, **sizes).has_experts


def test_logits_are_capped_where_the_folder_says_so(tmp_path: Path) -> None:
    assert read(tmp_path, final_logit_softcapping=30.0).logit_cap == 30.0
    assert read(tmp_path, use_bidirectional_attention="vision").logit_cap is None


STRANGE: list[tuple[dict[str, Any], str]] = [
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all', not \"vision"),
    ({"final_logit_softcapping": 0}, r"logits capped at 0\.0"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    ({"hidden_activation": "silu"}, "hidden_activation is 'silu', not gelu_pytorch_tanh"),
    ({"layer_types": ["sliding_attention"] * 6}, "layer_types is 'sliding_attention at its end'"),
    ({"num_kv_shared_layers": 4}, "num_kv_shared_layers is 4, not so few that each kind"),
    ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6, not so few that each kind"),
    ({"num_kv_shared_layers": 7}, "num_kv_shared_layers is 7, not so few that each kind"),
    ({"num_kv_shared_layers": -1}, "num_kv_shared_layers is -1, not a whole number"),
    ({"rope_scaling": {"factor": 2}}, "rope_scaling is .*, not absent: rope_parameters"),
    ({"rope_parameters": {"full_attention": {}}}, "rope_parameters is .* one with sliding_att"),
    ({"per_layer_config": []}, r"per_layer_config is \[\], not an object"),
    ({"per_layer_config": {"6": {}}}, r"per_layer_config.6 is {}, not of one of 6 layers"),
    ({"per_layer_config": {"2": None}}, "per_layer_config.2 is None, not of one of 6 layers"),
    ({"per_layer_config": {"2": {"sliding_window": 8}}}, "2.sliding_window is 8, not absent"),
    ({"per_layer_config": {"2": {"head_dim": 0}}}, r"2\.head_dim is 0, not a whole number"),
    ({"enable_moe_block": True}, "num_experts is None, not a whole number"),
    ({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 99}, "of 99 rows, and vocab"),
    ({"hidden_size_per_layer_input": "8"}, "hidden_size_per_layer_input is '8'"),
    ({"head_dim": 15}, "head_dim 15 is odd"),
    ({"attention_k_eq_v": 1}, "attention_k_eq_v is 1, not true or false"),
]


@pytest.mark.parametrize(("changes", "message"), STRANGE)
def test_what_cannot_be_computed_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        read(tmp_path, **changes)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ")


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "default"}, r"partial_rotary_factor is 0\.25, not one of a proportional"),
        ({"partial_rotary_factor": 1.5}, r"partial_rotary_factor is 1\.5, not a part of 32 dim"),
        ({"partial_rotary_factor": 0.01}, r"partial_rotary_factor is 0\.01, not a part of 32"),
        ({"rope_type": "dynamic", "partial_rotary_factor": 1}, "rope_type is 'dynamic'"),
        ({"factor": 0.5}, r"rope theta 5\.0 or factor 0\.5 out of bounds"),
    ],
)
def test_other_positions_are_refused_by_name(
    rope: dict[str, Any], message: str, tmp_path: Path
) -> None:
    ropes = {**ROPES, "full_attention": {**ROPES["full_attention"], **rope}}
    with pytest.raises(LoadError, match=message):
        read(tmp_path, rope_parameters=ropes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_k_eq_v", True),
        ("enable_moe_block", True),
        ("use_double_wide_mlp", True),
        ("per_layer_config", {"0": {"head_dim": 8}}),
        ("num_kv_shared_layers", 2),
        ("hidden_size_per_layer_input", 8),
    ],
)
def test_other_families_refuse_what_is_gemma_4s_alone(
    field: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=f"field {field} is .* computes without it"):
        read_folder(tmp_path, "gemma3_text", **{field: value})


@pytest.mark.parametrize("wrapper", ["gemma4", "gemma4_unified"])
def test_a_wrapper_is_read_for_its_text_part(wrapper: str, tmp_path: Path) -> None:
    alone = read_folder(tmp_path, f"{wrapper}_text")
    whole = {"model_type": wrapper, "text_config": BASE, "vision_config": {"x": 1}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert read_model_config(tmp_path) == alone


SIZES = {
    "model_type": "gemma4_text",
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 300,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 512,
}
BESIDE = ("per_layer_input_gate", "per_layer_projection")
KEPT = (
    "lm_head",
    "model.per_layer_model_projection",
    *(f"model.layers.{layer}.{name}" for layer in range(4) for name in BESIDE),
)
"""Modules that are not quantised."""


def made(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    own = {name: value for name, value in SIZES.items() if name != "model_type"}
    config = transformers.Gemma4TextConfig(**own, tie_word_embeddings=False)
    return transformers.Gemma4ForCausalLM(config).eval()


def logits(
    model: str | Path,
    dtype: torch.dtype = torch.float32,
    bits: WeightBits = 16,
    kv: torch.dtype | None = None,
) -> torch.Tensor:
    loaded = load_model(model, dtype=dtype, device=CPU, bits=bits)
    runner = ModelRunner(loaded, num_blocks=16, block_size=16, kv_dtype=kv)
    tokens = np.random.default_rng(0).integers(0, 256, 80, dtype=np.int32)
    table = np.arange(5, dtype=np.int32)
    step = SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=80)
    return runner.run([step])[:, :256].clone()


def off(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("form", ["fp8 blocks", "packed 4 group 32", "gptq 4 v2", "awq 32"])
def test_a_folder_in_few_bits_computes_with_its_numbers(form: str, tmp_path: Path) -> None:
    numbers = write_folder(tmp_path / "kept", FORMATS[form], seed=2, kept=KEPT, make=made)
    assert len(numbers) == 2 * 4 + 2 * 2 + 4 * 3
    plain = logits(widened_folder(tmp_path / "kept", numbers, tmp_path / "wide", made))
    assert off(logits(tmp_path / "kept"), plain) < 1e-5


@pytest.mark.parametrize("preset", ["gemma4-tiny", "gemma4-moe-tiny"])
@pytest.mark.parametrize(("bits", "limit"), [(8, 0.1), (4, 0.7)])
def test_our_own_few_bits_are_near(preset: str, bits: WeightBits, limit: float) -> None:
    plain = logits(f"random:{preset}", torch.bfloat16)
    assert 0 < off(logits(f"random:{preset}", torch.bfloat16, bits), plain) < limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_in_8_bits_are_near(dtype: torch.dtype) -> None:
    plain = logits("random:gemma4-tiny")
    assert 0 < off(logits("random:gemma4-tiny", dtype, kv=torch.int8), plain) < 0.1


@pytest.mark.parametrize(
    ("dtype", "kv", "limit"),
    [
        (torch.float32, None, 1e-4),
        (torch.bfloat16, None, 0.1),
        (torch.float32, torch.int8, 0.05),
        (torch.bfloat16, torch.int8, 0.1),
    ],
)
def test_heads_of_the_published_sizes_are_near_float64(
    dtype: torch.dtype, kv: torch.dtype | None, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 numbers and 512, as many queries at once as go to each kernel, and one by one. Scores are
    scaled: those of random heads that long would else pick one token, and rounding another."""
    small = PRESETS["gemma4-tiny"]
    sizes = {16: 256, 32: 512}
    ropes = {None: RopeConfig(), 8: RopeConfig(theta=1e6, kind="proportional", rotated=128)}
    layers = []
    for layer in small.layers:
        mixer = layer.mixer
        assert isinstance(mixer, Attention)
        assert mixer.rope is not None
        size, rope = sizes[mixer.head_dim], ropes[mixer.rope.rotated]
        wider = replace(mixer, head_dim=size, rope=rope, scale=size**-0.5)
        layers.append(replace(layer, mixer=wider))
    monkeypatch.setitem(PRESETS, "gemma4-heads", replace(small, layers=tuple(layers)))
    exact = logits("random:gemma4-heads", torch.float64)
    assert off(logits("random:gemma4-heads", dtype, kv=kv), exact) < limit
    model = load_model("random:gemma4-heads", dtype=dtype, device=CPU)
    runner = ModelRunner(model, num_blocks=16, block_size=16, kv_dtype=kv)
    tokens = np.random.default_rng(0).integers(0, 256, 80, dtype=np.int32)
    rows = []
    for start, end in ((0, 60), (60, 77), (77, 78), (78, 79), (79, 80)):
        step = SequenceInput(
            tokens=tokens[start:end],
            start=start,
            block_table=np.arange(5, dtype=np.int32),
            num_logits=end - start,
        )
        rows.append(runner.run([step])[:, :256].clone())
    assert off(torch.cat(rows), exact) < limit
