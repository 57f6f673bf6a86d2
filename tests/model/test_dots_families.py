"""Fields that only dots.llm1 has; its arithmetic is ``test_family_parity``'s."""

from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Attention, Experts, Gated, LoadError, ModelConfig
from tests.support.config_folders import read_folder, seen

EXPERTS = {"n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 2}


def read(folder: Path, **changes: Any) -> ModelConfig:
    return read_folder(folder, "dots1", **EXPERTS | changes)


def test_experts_are_behind_the_first_layers_and_heads_are_normed(tmp_path: Path) -> None:
    config = read(tmp_path, first_k_dense_replace=2, moe_intermediate_size=16)
    kinds = [type(layer.feed_forward) for layer in config.layers]
    assert kinds == [Gated] * 2 + [Experts] * 4
    experts = config.layers[-1].feed_forward
    assert isinstance(experts, Experts)
    assert experts.shared == Gated(size=32)
    router = experts.router
    assert (router.scores, router.correction, router.normalise) == ("sigmoid", True, False)
    mixer = config.attention[0]
    assert isinstance(mixer, Attention)
    assert (mixer.norm, mixer.bias, mixer.output_bias) == ("each", False, False)
    assert read(tmp_path, scoring_func="noaux_tc").layers == read(tmp_path).layers
    assert isinstance(read(tmp_path).layers[0].feed_forward, Experts)


def test_layers_have_a_window_from_one_on_or_where_they_are_listed(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"] * 3
    for found, changes in (
        ([None] * 6, {}),
        ([None] * 6, {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 0}),
        ([None] * 4 + [4096] * 2, {"max_window_layers": 4}),
        ([None] * 4 + [9] * 2, {"max_window_layers": 4, "sliding_window": 9}),
        ([9, None] * 3, {"layer_types": kinds, "sliding_window": 9, "use_sliding_window": True}),
    ):
        assert seen(read(tmp_path, **changes)) == found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_shared_experts": None}, "n_shared_experts is None, not a whole number"),
        ({"n_routed_experts": None}, "n_routed_experts is None, not a whole number"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', not sigmoid or noaux_tc"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy', not noaux_tc"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2, not 1"),
        ({"max_window_layers": 2, "use_sliding_window": False}, "use_sliding_window is False, not"),
        (
            {"layer_types": ["sliding_attention"] * 6, "sliding_window": None},
            "sliding_window is None, not a number",
        ),
        ({"mlp_bias": True}, "mlp_bias is True, not false"),
    ],
)
def test_what_is_not_known_is_refused_by_its_field(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, **changes)
