"""Angles of the rotary embedding: each stretching against ``transformers``' own."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from runtime.model.rope_config import RopeConfig
from runtime.model.rotary import RotaryTable, inverse_frequencies

CPU = torch.device("cpu")
STRETCHED = [
    ("linear", {"factor": 4.0}, {}),
    (
        "llama3",
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
        {"original_max_position": 1024},
    ),
    (
        "yarn",
        {"factor": 4.0, "original_max_position_embeddings": 2048},
        {"original_max_position": 2048},
    ),
    (
        "yarn",
        {
            "factor": 8.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 16,
            "beta_slow": 2,
            "truncate": False,
        },
        {"original_max_position": 512, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    ),
]


@pytest.mark.parametrize(("kind", "theirs", "ours"), STRETCHED)
@pytest.mark.parametrize("head_dim", [32, 128])
def test_frequencies_equal_those_of_transformers(
    kind: str, theirs: dict[str, float], ours: dict[str, float], head_dim: int
) -> None:
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": kind, "rope_theta": 50000.0, **theirs},
    )
    expected, _ = ROPE_INIT_FUNCTIONS[kind](config, CPU)
    rope = RopeConfig(kind=kind, theta=50000.0, factor=theirs["factor"], **ours)
    actual = inverse_frequencies(rope, head_dim, torch.float32)
    assert torch.allclose(actual, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("share", "turned"), [(0.25, 4), (0.3, 4), (1.0, 16)])
def test_a_part_is_turned_in_proportion_to_the_whole_as_in_transformers(
    share: float, turned: int
) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=4,
        head_dim=32,
        rope_parameters={
            "rope_type": "proportional",
            "rope_theta": 50000.0,
            "partial_rotary_factor": share,
            "factor": 2.0,
        },
    )
    expected, _ = ROPE_INIT_FUNCTIONS["proportional"](config, CPU)
    rope = RopeConfig(kind="proportional", theta=50000.0, rotated=2 * turned, factor=2.0)
    actual = inverse_frequencies(rope, 32, torch.float32)
    assert torch.allclose(actual, expected, rtol=1e-6, atol=0)
    cos, sin, _ = RotaryTable(rope, 32, torch.float64, CPU).at(torch.tensor([5]), 5)
    assert (cos[0, turned:] == 1).all()
    assert not sin[0, turned:].any()
    assert (sin[0, :turned] != 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_table_grows_and_positions_keep_their_angles(dtype: torch.dtype) -> None:
    table = RotaryTable(RopeConfig(attention_factor=1.5), 8, dtype, CPU)
    early = table.at(torch.tensor([3, 900]), 900)
    late = table.at(torch.tensor([3, 5000]), 5000)
    assert torch.equal(early[0][0], late[0][0])
    frequencies = 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    expected = 1.5 * (5000 * frequencies).cos()
    limit = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 1e-2}[dtype]
    assert torch.allclose(late[0][1].double(), expected, atol=limit, rtol=0)
