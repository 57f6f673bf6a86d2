"""Fields that only some dense families have; their arithmetic is ``test_family_parity``'s."""

from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import LoadError
from runtime.model.rope_config import RopeConfig
from tests.support.config_folders import read_folder, seen


def test_smollm3_has_no_positions_on_every_fourth_layer(tmp_path: Path) -> None:
    def turned(**changes: Any) -> list[bool]:
        config = read_folder(tmp_path, "smollm3", **changes)
        return [layer.mixer.rope is not None for layer in config.layers]

    assert turned() == [True, True, True, False, True, True]
    assert turned(no_rope_layers=[0, 1] * 3) == [False, True] * 3
    windowed = read_folder(tmp_path, "smollm3", use_sliding_window=True, sliding_window=9)
    assert seen(windowed) == [None, None, None, 9, None, None]
    with pytest.raises(LoadError, match=r"no_rope_layers is .*, not 6 of 0 and 1"):
        turned(no_rope_layers=[1, 2, 3])


def test_gemma3_has_windows_and_positions_of_two_kinds_in_both_spellings(tmp_path: Path) -> None:
    old = read_folder(
        tmp_path,
        "gemma3_text",
        sliding_window=9,
        sliding_window_pattern=3,
        rope_theta=5.0,
        rope_local_base_freq=7.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert seen(old) == [9, 9, None] * 2
    full = RopeConfig(theta=5.0, kind="linear", factor=8.0)
    assert [layer.mixer.rope for layer in old.layers[1:3]] == [RopeConfig(theta=7.0), full]
    assert old.max_context_tokens == 4096  # which is stretched already
    new = read_folder(
        tmp_path,
        "gemma3_text",
        sliding_window=9,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 5.0, "factor": 8.0},
        },
    )
    assert new == old


def test_olmo3_stretches_only_what_sees_everything(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    config = read_folder(tmp_path, "olmo3", sliding_window=9, rope_theta=5.0, rope_scaling=yarn)
    assert seen(config) == [9, 9, 9, None, 9, 9]
    sliding, full = config.layers[0].mixer.rope, config.layers[3].mixer.rope
    assert sliding is not None
    assert full is not None
    assert (sliding.kind, sliding.theta, full.kind, full.theta) == ("default", 5.0, "yarn", 5.0)
