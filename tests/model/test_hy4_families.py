"""Folders of Hy4: what is read, what is refused by name, and how tensors are called. The arithmetic
is ``test_family_parity``'s."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.model.config import Experts, Gated, LoadError, ModelConfig
from runtime.model.latent import Indexer, Latent
from runtime.model.streams import Streams
from runtime.model.weights import load_model
from tests.support.config_folders import BASE, read_folder
from tests.support.family_shapes import SHAPES, make, save

CPU = torch.device("cpu")
COUNT = BASE["num_hidden_layers"]


def read(folder: Path, **changes: Any) -> ModelConfig:
    heads = {"num_key_value_heads": BASE["num_attention_heads"]}
    return read_folder(folder, "hy_v4", **heads | changes)


def mixers_of(config: ModelConfig) -> list[Latent]:
    mixers = [layer.mixer for layer in config.layers]
    assert all(isinstance(mixer, Latent) for mixer in mixers)
    return mixers  # type: ignore[return-value]


def test_the_least_that_a_folder_says_is_read(tmp_path: Path) -> None:
    config = read(tmp_path)
    first, second, third, *_ = mixers_of(config)
    assert (first.gated, first.sinks, first.interleaved) == ("numbers", True, False)
    assert (first.rank, first.query_rank, first.plain_dim, first.rotary_dim) == (512, 1536, 192, 64)
    own = Indexer(heads=16, dim=128, top_k=2048, turns_last=True, eps=1e-5)
    assert (first.indexer, second.indexer) == (own, own)
    shared = [mixer.indexer is not None and mixer.indexer.shared for mixer in mixers_of(config)]
    assert shared == [False, False, True, True, True, False]
    assert third.head_dim == 512 + 64 + 128
    assert config.streams == Streams(
        count=4, iterations=None, eps=1e-6, largest=2.0, behind_eps=1e-6
    )
    kinds = [type(layer.feed_forward) for layer in config.layers]
    assert kinds == [Gated, *[Experts] * 5]
    experts = config.layers[1].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.each.activation, experts.each.limit) == ("clamped_silu", 10.0)  # type: ignore[union-attr]
    assert experts.shared == Gated(size=768)
    assert (experts.router.scores, experts.router.scale) == ("sigmoid", 2.827)


def test_lists_say_which_layers_share_choices_and_have_one_mlp(tmp_path: Path) -> None:
    own = {
        "indexer_types": ["full", "shared"] * 3,
        "mlp_layer_types": ["sparse", "dense"] * 3,
        "layer_types": ["indexed_attention"] * COUNT,
        "hc_magnitude": 1.5,
        "hc_mult": 2,
    }
    config = read(tmp_path, **own)
    shared = [mixer.indexer is not None and mixer.indexer.shared for mixer in mixers_of(config)]
    assert shared == [False, True] * 3
    assert [isinstance(layer.feed_forward, Gated) for layer in config.layers] == [False, True] * 3
    assert config.streams is not None
    assert (config.streams.count, config.streams.largest) == (2, 1.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"] * COUNT}, "not 6 of indexed_attention"),
        ({"indexer_types": ["shared"] * COUNT}, "the first layer shares a choice"),
        ({"q_lora_rank": None}, "q_lora_rank is None, not a number"),
        ({"rope_interleave": True}, "rope_interleave is True, not false"),
        ({"indexer_rope_interleave": True}, "indexer_rope_interleave is True, not false"),
        ({"swiglu_limit": 0.0}, "swiglu_limit is 0.0, not above 0"),
        ({"hc_magnitude": 0}, "hc_magnitude is 0.0, not above 0"),
        ({"hc_sinkhorn_iters": 20}, "hc_sinkhorn_iters is 20, not absent"),
        ({"first_k_dense_replace": 3}, "first_k_dense_replace is 3, not 1, or mlp_layer_types"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2, not 1"),
        ({"index_topk_freq": 4}, "index_topk_freq is 4, not 1"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', not sigmoid"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', not silu"),
    ],
)
def test_what_is_not_known_is_refused_by_its_field(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    "spelling",
    [
        {"hc_pre.hc_attn_layer.": "attn_hc.", "hc_pre.hc_mlp_layer.": "ffn_hc.", ".hc_": "."},
        {"hc_pre.hc_attn_layer": "hc_attn_layer", "hc_pre.hc_mlp_layer": "hc_mlp_layer"},
        {
            "hc_pre.hc_attn_layer": "hc_attn_layer.hc_pre",
            "hc_pre.hc_mlp_layer": "hc_mlp_layer.hc_pre",
            "model.hc_pre.hc_head": "model.hc_head.hc_pre",
        },
        {"linear_gate": "gate_proj", "learnable_sink_param": "sinks"},
        {"mlp.linear_gate": "mlp.gate_proj", "experts.linear_gate": "experts.gate_proj"},
    ],
)
def test_tensors_are_found_however_they_are_called(
    spelling: dict[str, str], tmp_path: Path
) -> None:
    save(make("hy_v4", SHAPES["below"], seed=0), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {}
    for name, tensor in tensors.items():
        own = name
        for old, new in spelling.items():
            own = own if "model.hc_pre.hc_head" in own and old == ".hc_" else own.replace(old, new)
        renamed[own] = tensor
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "model.safetensors")
    load_model(tmp_path, dtype=torch.float64, device=CPU)
