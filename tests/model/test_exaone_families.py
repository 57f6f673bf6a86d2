"""Fields that only EXAONE 4 and K-EXAONE have; their arithmetic is ``test_family_parity``'s."""

from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Experts, LoadError
from runtime.model.rope_config import RopeConfig
from tests.support.config_folders import read_folder, seen


def test_exaone4_rotates_layers_with_a_window_alone(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "exaone4")
    assert seen(config) == [4096, 4096, 4096, None, 4096, 4096]
    assert [mixer.rope is None for mixer in config.attention] == [
        window is None for window in seen(config)
    ]
    assert {layer.norms for layer in config.layers} == {"after"}
    kinds = ["full_attention", "sliding_attention"] * 3
    listed = read_folder(tmp_path, "exaone4", layer_types=kinds, sliding_window=9)
    assert seen(listed) == [None, 9] * 3
    named = {"sliding_window_pattern": "LG", "layer_types": kinds}
    assert seen(read_folder(tmp_path, "exaone4", **named)) == [None, 4096] * 3


def test_exaone4_without_windows_rotates_all(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "exaone4", sliding_window=None)
    assert seen(config) == [None] * 6
    assert {mixer.rope for mixer in config.attention} == {RopeConfig()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window_pattern": "LLLG"}, "sliding_window_pattern is 'LLLG', not a whole"),
        (
            {"sliding_window": None, "layer_types": ["sliding_attention"] * 6},
            "sliding_window is None, not a number",
        ),
    ],
)
def test_what_exaone4_does_not_say_plainly_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        read_folder(tmp_path, "exaone4", **changes)


def test_k_exaone_has_experts_behind_its_first_layer_unless_it_lists_them(tmp_path: Path) -> None:
    config = read_folder(tmp_path, "exaone_moe", num_shared_experts=2, moe_intermediate_size=16)
    assert seen(config) == [4096, 4096, 4096, None, 4096, 4096]
    assert [mixer.rope is None for mixer in config.attention] == [
        window is None for window in seen(config)
    ]
    assert {layer.norms for layer in config.layers} == {"before"}
    kinds = [isinstance(layer.feed_forward, Experts) for layer in config.layers]
    assert kinds == [False, *[True] * 5]
    experts = config.layers[1].feed_forward
    assert isinstance(experts, Experts)
    assert experts.shared is not None
    assert experts.shared.size == 32
    assert (experts.router.scores, experts.router.scale) == ("sigmoid", 2.5)
    listed = read_folder(tmp_path, "exaone_moe", mlp_layer_types=["sparse", "dense"] * 3)
    kinds = [isinstance(layer.feed_forward, Experts) for layer in listed.layers]
    assert kinds == [True, False] * 3
    with pytest.raises(LoadError, match="groups"):
        read_folder(tmp_path, "exaone_moe", n_group=3)
