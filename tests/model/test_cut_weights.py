"""Parts of weights: side by side they are the whole, and no more of a file is taken."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from runtime.model.checkpoint import SINGLE_NAME, Checkpoint
from runtime.model.config import LoadError
from runtime.model.cut_weights import CutWeights
from runtime.model.family import TensorNames
from runtime.model.family_weights import FamilyWeights
from runtime.model.partition import Partition
from runtime.model.presets import PRESETS
from runtime.model.random_weights import RandomWeights

CPU = torch.device("cpu")
CONFIG = PRESETS["gpt-oss-tiny"]  # biases, sinks, experts, 2 heads of keys
ATTENTION = "model.layers.0.self_attn"


def parts_of(name: str, shape: tuple[int, ...], ranks: int = 2) -> list[Tensor]:
    """Each rank's part of a random model's tensor; ``shape`` is the part's."""
    weights = RandomWeights(3, torch.float64, CPU)
    return [
        CutWeights(weights, CONFIG, Partition(ranks=ranks, rank=rank), 16).tensor(name, shape)
        for rank in range(ranks)
    ]


@pytest.mark.parametrize(
    ("name", "part", "axis"),
    [
        (f"{ATTENTION}.q_proj.weight", (64, 64), 0),
        (f"{ATTENTION}.k_proj.bias", (16,), 0),
        (f"{ATTENTION}.o_proj.weight", (64, 64), 1),
        (f"{ATTENTION}.sinks", (4,), 0),
        ("model.layers.0.mlp.experts.2.up_proj.weight", (16, 64), 0),
        ("model.layers.0.mlp.experts.2.down_proj.weight", (64, 16), 1),
    ],
)
def test_parts_side_by_side_are_the_whole(name: str, part: tuple[int, ...], axis: int) -> None:
    whole = list(part)
    whole[axis] *= 2
    expected = RandomWeights(3, torch.float64, CPU).tensor(name, tuple(whole))
    parts = parts_of(name, part)
    assert torch.equal(torch.cat(parts, axis), expected)
    assert all(each.untyped_storage().nbytes() == each.numel() * 8 for each in parts)


def test_ranks_beyond_the_heads_of_keys_have_the_same_ones() -> None:
    parts = parts_of(f"{ATTENTION}.v_proj.weight", (16, 64), ranks=4)
    assert torch.equal(parts[0], parts[1])
    assert torch.equal(parts[2], parts[3])
    assert not torch.equal(parts[1], parts[2])


@pytest.mark.parametrize("name", ["self_attn.o_proj.bias", "mlp.experts.1.down_proj.bias"])
def test_what_is_added_to_a_sum_is_on_the_leading_rank_alone(name: str) -> None:
    first, second = parts_of(f"model.layers.1.{name}", (64,))
    assert torch.equal(
        first, RandomWeights(3, torch.float64, CPU).tensor(f"model.layers.1.{name}", (64,))
    )
    assert torch.equal(second, torch.zeros(64, dtype=torch.float64))


def test_a_part_of_a_tensor_that_several_share_is_cut_from_its_own_rows(tmp_path: Path) -> None:
    config = PRESETS["qwen3-tiny-4"]
    fused = torch.arange(192.0 * 64, dtype=torch.float64).view(192, 64)
    name = "model.layers.0.self_attn.qkv_proj.weight"
    save_file({name: fused}, tmp_path / SINGLE_NAME)
    parts = tuple(f"self_attn.{which}_proj" for which in "qkv")
    names = TensorNames(fused=(("self_attn.qkv_proj", parts),))
    stored = Checkpoint(tmp_path, torch.float64, CPU)
    cut = CutWeights(FamilyWeights(stored, names, config), config, Partition(ranks=4, rank=3), 16)
    for number, which in enumerate("qkv"):
        found = cut.tensor(f"model.layers.0.self_attn.{which}_proj.weight", (16, 64))
        assert torch.equal(found, fused[64 * number + 48 : 64 * number + 64])


def test_groups_of_four_bits_are_not_cut() -> None:
    weights = RandomWeights(3, torch.float32, CPU)
    cut = CutWeights(weights, CONFIG, Partition(ranks=4, rank=0), 4)
    with pytest.raises(LoadError, match=r"down_proj.* has 8 inputs on each of 4 ranks"):
        cut.tensor("model.layers.0.mlp.experts.0.down_proj.weight", (64, 8))
    cut.tensor(f"{ATTENTION}.o_proj.weight", (64, 128))
    cut.tensor(f"{ATTENTION}.q_proj.weight", (32, 64))
