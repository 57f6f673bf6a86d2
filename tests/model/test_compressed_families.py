"""Fields of families with compressed attention; their arithmetic is ``test_family_parity``'s."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.model.compressed import Compressed
from runtime.model.compressed_families import COMPRESSED_FAMILIES
from runtime.model.config import Experts, LoadError, ModelConfig
from runtime.model.kv_pool import parted_bytes
from runtime.model.latent import Indexer
from runtime.model.rope_config import RopeConfig
from runtime.model.streams import Streams
from runtime.model.weights import load_model
from tests.model.test_family_parity import logits
from tests.support.config_folders import read_folder
from tests.support.family_shapes import SHAPES, make, save

CPU = torch.device("cpu")
YARN = {
    "type": "yarn",
    "factor": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 65536,
}
PUBLISHED = {
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 1048576,
    "rope_scaling": YARN,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "compress_ratios": [0, 0, *([4, 128] * 20), 4, 0],
    "num_hash_layers": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
}
"""What a folder of DeepSeek's says, but for fields whose defaults are the same."""
ONE_KEY = {"num_key_value_heads": 1}
BOTH = {
    "main": {"rope_type": "default", "rope_theta": 500.0},
    "compress": {**YARN, "rope_type": "yarn", "rope_theta": 900.0},
}


def read(folder: Path, **changes: Any) -> ModelConfig:
    return read_folder(folder, "deepseek_v4", **ONE_KEY | changes)


def mixers(config: ModelConfig) -> list[Compressed]:
    found = [layer.mixer for layer in config.layers]
    assert all(isinstance(each, Compressed) for each in found)
    return found  # type: ignore[return-value]


def ratios(config: ModelConfig) -> list[int | None]:
    return [each.ratio for each in mixers(config)]


def test_the_least_that_a_folder_says_is_read(tmp_path: Path) -> None:
    assert set(COMPRESSED_FAMILIES) == {"deepseek_v4"}
    config = read(tmp_path)
    assert ratios(config) == [128, 128, 128, 4, 128, 4]
    assert config.streams == Streams(count=4, iterations=20, eps=1e-6)
    tables = [layer.feed_forward.router.table_rows for layer in config.layers]
    assert tables == [100] * 3 + [None] * 3


def test_a_published_folder_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, **PUBLISHED)
    assert ratios(config) == [None, None, *([4, 128] * 20), 4]
    first, second = mixers(config)[1], mixers(config)[2]
    assert first.rope == RopeConfig(theta=10000.0)
    assert (second.rope.kind, second.rope.theta, second.rope.factor) == ("yarn", 160000.0, 16.0)
    assert second.rope.attention_factor == 1.0
    assert second.indexer == Indexer(heads=64, dim=128, top_k=512)
    assert config.max_context_tokens == 1 << 20
    sizes = [(group.shape.size, group.shape.tokens) for group in config.kv_groups]
    assert sizes == [(512, 1), (3072, 1), (1536, 1), (640, 4), (512, 128)]
    assert config.window == 128
    far, near = parted_bytes(config, 16, torch.bfloat16)
    assert (round(far / 16e3, 1), round(near / 16e3, 1)) == (8.0, 192.5)
    experts = config.layers[3].feed_forward
    assert isinstance(experts, Experts)
    assert experts.router.correction
    assert experts.each.limit == 10
    assert config.num_parameters / 1e9 == pytest.approx(284, abs=3)


def test_each_kind_of_position_may_have_an_object(tmp_path: Path) -> None:
    kinds = ["sliding_attention", *["compressed_sparse_attention"] * 5]
    config = read(tmp_path, rope_parameters=BOTH, layer_types=kinds)
    near, far = mixers(config)[:2]
    assert near.rope == RopeConfig(theta=500.0)
    assert (far.rope.theta, far.rope.kind) == (900.0, "yarn")
    assert far.rope.attention_factor == pytest.approx(1.277, abs=1e-3)
    stated = {**BOTH["compress"], "attention_factor": 1.0}
    config = read(tmp_path, rope_parameters={**BOTH, "compress": stated}, layer_types=kinds)
    assert mixers(config)[1].rope.attention_factor == 1


def test_rates_and_parts_may_be_spelled_in_two_ways(tmp_path: Path) -> None:
    rates = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64}
    for changes in (
        {"compress_rates": rates},
        {"compress_rate_csa": 8, "compress_rate_hca": 64},
        {"compress_rates": {"compressed_sparse_attention": 8}, "compress_rate_hca": 64},
    ):
        assert read(tmp_path, **changes).ratios == (64, 8)
    for changes in ({"qk_rope_head_dim": 128}, {"partial_rotary_factor": 0.25}):
        config = read(tmp_path, **changes, index_head_dim=128)
        assert mixers(config)[0].rotary_dim == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2, not 1: all heads"),
        ({"attention_bias": True}, "attention_bias is True, not false"),
        ({"mlp_bias": True}, "mlp_bias is True, not false"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False, not true"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy', not noaux_tc"),
        ({"n_shared_experts": 2}, "n_shared_experts is 2, not 1"),
        ({"n_group": 8}, "n_group is 8, not 1"),
        (
            {"scoring_func": "relu"},
            "scoring_func is 'relu', not sqrtsoftplus or sig",
        ),
        ({"swiglu_limit": 0}, "swiglu_limit is 0.0, not above 0"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', not silu"),
        ({"o_groups": 3}, "8 heads are not in 3 equal groups"),
        ({"compress_ratios": [4] * 5}, "compress_ratios is .*, not at least 6 of 0, 4, 128"),
        ({"compress_ratios": [4, 8] * 3}, "compress_ratios is .*, not at least 6 of 0, 4, 128"),
        ({"layer_types": ["full_attention"] * 6}, "not 6 of sliding_attention, compressed_sparse"),
        ({"mlp_layer_types": ["moe"] * 5}, "mlp_layer_types is .*, not 6 of hash_moe, moe"),
        (
            {"mlp_layer_types": ["hash_moe"] * 6, "num_hash_layers": 2},
            "mlp_layer_types is .*, not what num_hash_layers says",
        ),
        (
            {"layer_types": ["sliding_attention"] * 6, "compress_ratios": [0, 0, 0, 0, 0, 4]},
            "layer_types is .*, not what compress_ratios says",
        ),
        ({"compress_rate_csa": 1}, "compress_rate_csa is 1, not at least 2"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7, not pairs of the 512 dimensions"),
        (
            {"qk_rope_head_dim": 64, "partial_rotary_factor": 0.25},
            "qk_rope_head_dim is 64, not 128, as partial_rotary_factor says",
        ),
        ({"qk_rope_head_dim": 256}, "index keys of 128 numbers, of which 256 are rotated"),
        (
            {"rope_parameters": {"rope_theta": 5.0}},
            "rope_theta is 5.0, not 10000, as rope_the",
        ),
        (
            {"rope_parameters": {**BOTH, "main": {"partial_rotary_factor": 0.5}}},
            "main.partial_rotary_factor is 0.5, not that of the whole model",
        ),
        ({"hc_sinkhorn_iters": 10**6}, "hc_sinkhorn_iters is 1000000, not at most 1000"),
        ({"hc_mult": 0}, "hc_mult is 0, not a whole number of at least 1"),
    ],
)
def test_what_is_not_known_is_refused_by_its_field(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, **changes)


def as_published(name: str) -> str:
    """What DeepSeek calls a tensor that ``transformers`` saves under another name."""
    name = (
        name.removeprefix("model.")
        .replace("hc_head.hc_", "hc_head_")
        .replace("embed_tokens", "embed")
    )
    return name.replace("hc_head.hc_", "hc_head_").replace("attn.norm.", "attn.kv_norm.")


def test_weights_are_read_by_the_names_that_are_published(tmp_path: Path) -> None:
    """Beside those that ``transformers`` saves; what predicts further tokens is left."""
    folder = save(make("deepseek_v4", SHAPES["uneven"], seed=1), tmp_path)
    tokens = torch.arange(40, dtype=torch.int32).numpy()
    expected = logits(folder, tokens, None)
    path = folder / "model.safetensors"
    stored = {as_published(name): tensor for name, tensor in load_file(path).items()}
    assert {"embed.weight", "hc_head_fn", "layers.0.attn.kv_norm.weight"} <= set(stored)
    stored["mtp.0.norm.weight"] = torch.ones(3)
    save_file(stored, path)
    assert torch.equal(logits(folder, tokens, None), expected)
    save_file({**stored, "layers.0.attn.wv.weight": torch.ones(3)}, path)
    with pytest.raises(LoadError, match=r"'layers.0.attn.wv.weight' is nothing that model_type"):
        load_model(folder, dtype=torch.float32, device=CPU)
