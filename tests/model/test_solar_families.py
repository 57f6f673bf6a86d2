"""What Solar Open's folders say; the arithmetic is ``test_family_parity``'s."""

from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Attention, Experts, Gated, LoadError, ModelConfig, Router
from runtime.model.rope_config import RopeConfig
from tests.support.config_folders import read_folder

PUBLISHED = {
    "head_dim": 16,
    "partial_rotary_factor": 1.0,
    "rope_theta": 1000000,
    "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048},
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 0,
}


def read(folder: Path, **changes: Any) -> ModelConfig:
    return read_folder(folder, "solar_open", **{**PUBLISHED, **changes})


def test_the_published_fields_are_read(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert len(set(config.layers)) == 1
    mixer, experts = config.layers[0].mixer, config.layers[0].feed_forward
    assert isinstance(mixer, Attention)
    rope = mixer.rope
    assert mixer == Attention(heads=8, kv_heads=4, head_dim=16, rope=rope)
    assert rope is not None
    assert (rope.kind, rope.theta, rope.original_max_position) == ("yarn", 1e6, 2048)
    assert config.max_context_tokens == 4096
    assert config.norm_eps == 1e-5
    router = Router(num_experts=16, per_token=4, scores="sigmoid", normalise=True, correction=True)
    assert experts == Experts(router=router, each=Gated(size=24), shared=Gated(size=24))


def test_what_is_left_out_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "solar_open")
    mixer, experts = config.layers[5].mixer, config.layers[5].feed_forward
    assert isinstance(mixer, Attention)
    assert (mixer.head_dim, mixer.rope) == (128, RopeConfig(theta=1e6))
    assert isinstance(experts, Experts)
    assert (experts.router.num_experts, experts.router.per_token) == (128, 8)
    assert experts.each == Gated(size=1280)


def test_biases_are_of_queries_keys_and_values_alone(tmp_path: Path) -> None:
    mixer = read(tmp_path, attention_bias=True).layers[0].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.bias, mixer.output_bias) == (True, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_k_dense_replace": 1}, "first_k_dense_replace is 1, not 0 or null"),
        ({"use_qk_norm": True}, "use_qk_norm is True, not false or null"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 'set', not whole heads"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', not sigmoid"),
        ({"n_group": 3}, "16 experts are not in 3 equal groups"),
    ],
)
def test_what_is_otherwise_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, **changes)
