"""Parts of weights: side by side they are the whole, and no more of a file is taken."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from runtime.model.checkpoint import SINGLE_NAME, Checkpoint
from runtime.model.config import LoadError, ModelConfig
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


def part_in(config: ModelConfig, name: str, shape: tuple[int, ...], ranks: int) -> list[Tensor]:
    """Each rank's part of a random tensor of another model."""
    weights = RandomWeights(3, torch.float64, CPU)
    return [
        CutWeights(weights, config, Partition(ranks=ranks, rank=rank), 16).tensor(name, shape)
        for rank in range(ranks)
    ]


def test_segments_are_cut_by_themselves() -> None:
    """Gates and heads of 48 numbers, 2 groups of 16 twice, 4 steps, one below the other."""
    config, name = PRESETS["granite-hybrid-tiny"], "model.layers.0.mamba.in_proj.weight"
    whole = RandomWeights(3, torch.float64, CPU).tensor(name, (164, 64))
    first, second = part_in(config, name, (82, 64), 2)
    for part, other in ((first, 0), (second, 1)):
        gates, heads, into, out, steps = part.split([24, 24, 16, 16, 2])
        assert torch.equal(gates, whole[24 * other : 24 * other + 24])
        assert torch.equal(heads, whole[48 + 24 * other : 72 + 24 * other])
        assert torch.equal(into, whole[96 + 16 * other : 112 + 16 * other])
        assert torch.equal(out, whole[128 + 16 * other : 144 + 16 * other])
        assert torch.equal(steps, whole[160 + 2 * other : 162 + 2 * other])
        assert part.untyped_storage().nbytes() == part.numel() * 8
    of_four = part_in(config, name, (57, 64), 4)
    assert torch.equal(of_four[0][24:56], of_four[1][24:56])  # one group's
    assert torch.equal(of_four[2][24:56], of_four[3][24:56])
    assert not torch.equal(of_four[1][24:56], of_four[2][24:56])


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_kept_head_by_head_is_cut_from_its_own_rows(ranks: int, tmp_path: Path) -> None:
    """Qwen3-Next's: of each head of keys its queries, keys, values and gates, one below the other;
    heads of keys are on several of four ranks."""
    config = PRESETS["qwen3.5-tiny"]  # 2 heads of keys of 16, 4 of values of 12
    whole = torch.arange(160.0 * 64, dtype=torch.float64).view(160, 64)
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    save_file({name: whole}, tmp_path / SINGLE_NAME)
    parts = tuple(f"linear_attn.in_proj_{which}" for which in "qkvz")
    names = TensorNames(by_head=(("linear_attn.in_proj_qkvz", parts),))
    stored = Checkpoint(tmp_path, torch.float64, CPU)
    family = FamilyWeights(stored, names, config)
    for rank in range(ranks):
        cut = CutWeights(family, config, Partition(ranks=ranks, rank=rank), 16)
        head = rank * 2 // ranks
        begin, values = 80 * head, 48 // ranks
        low = 32 + values * (rank - head * ranks // 2)  # within the head of keys
        prefix = "model.layers.0.linear_attn.in_proj_"
        found = cut.tensor(f"{prefix}q.weight", (16, 64))
        assert torch.equal(found, whole[begin : begin + 16])
        found = cut.tensor(f"{prefix}k.weight", (16, 64))
        assert torch.equal(found, whole[begin + 16 : begin + 32])
        found = cut.tensor(f"{prefix}v.weight", (values, 64))
        assert torch.equal(found, whole[begin + low : begin + low + values])
        found = cut.tensor(f"{prefix}z.weight", (values, 64))
        assert torch.equal(found, whole[begin + 24 + low : begin + 24 + low + values])


def test_what_is_kept_in_order_is_cut_segment_by_segment(tmp_path: Path) -> None:
    """Qwen3.5's: all queries, then all keys, then all values; and the convolution over them."""
    config = PRESETS["qwen3.5-tiny"]
    whole = torch.arange(112.0 * 64, dtype=torch.float64).view(112, 64)
    taps = torch.arange(112.0 * 4, dtype=torch.float64).view(112, 1, 4)
    prefix = "model.layers.0.linear_attn."
    tensors = {f"{prefix}in_proj_qkv.weight": whole, f"{prefix}conv1d.weight": taps}
    save_file(tensors, tmp_path / SINGLE_NAME)
    parts = tuple(f"linear_attn.in_proj_{which}" for which in "qkv")
    names = TensorNames(fused=(("linear_attn.in_proj_qkv", parts),))
    stored = Checkpoint(tmp_path, torch.float64, CPU)
    cut = CutWeights(FamilyWeights(stored, names, config), config, Partition(ranks=4, rank=3), 16)
    rows = [*range(16, 32), *range(48, 64), *range(100, 112)]
    found = [
        cut.tensor(f"{prefix}in_proj_{which}.weight", (size, 64))
        for which, size in (("q", 16), ("k", 16), ("v", 12))
    ]
    assert torch.equal(torch.cat(found), whole[rows])
    assert torch.equal(cut.tensor(f"{prefix}conv1d.weight", (44, 1, 4)), taps[rows])


def test_groups_of_four_bits_are_not_cut() -> None:
    weights = RandomWeights(3, torch.float32, CPU)
    cut = CutWeights(weights, CONFIG, Partition(ranks=4, rank=0), 4)
    with pytest.raises(LoadError, match=r"down_proj.* has 8 inputs on each of 4 ranks"):
        cut.tensor("model.layers.0.mlp.experts.0.down_proj.weight", (64, 8))
    cut.tensor(f"{ATTENTION}.o_proj.weight", (64, 128))
    cut.tensor(f"{ATTENTION}.q_proj.weight", (32, 64))
