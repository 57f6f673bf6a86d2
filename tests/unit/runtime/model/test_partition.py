"""A rank's part: sizes that divide; what cannot be cut is said by name."""

from dataclasses import replace

import pytest

from runtime.model.config import Attention, Experts, Gated, LoadError, ModelConfig
from runtime.model.latent import Latent
from runtime.model.partition import MOST_RANKS, Partition, fitting_ranks, part_of
from runtime.model.presets import PRESETS
from runtime.model.recurrent import GatedDelta, KimiDelta, Mamba2, ShortConv, SpreadGroup

TINY, EXPERTS = PRESETS["qwen3-tiny-4"], PRESETS["qwen3-moe-tiny-4"]


def of(ranks: int, rank: int = 0, *, whole_experts: bool = False) -> Partition:
    return Partition(ranks=ranks, rank=rank, whole_experts=whole_experts)


def refusal(config: ModelConfig, partition: Partition) -> str:
    with pytest.raises(LoadError) as refused:
        part_of("m", config, partition)
    return str(refused.value)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_has_an_equal_part_of_heads_and_widths(ranks: int) -> None:
    part = part_of("m", TINY, of(ranks))
    mixer, mlp = part.layers[0].mixer, part.layers[0].feed_forward
    assert isinstance(mixer, Attention)
    assert isinstance(mlp, Gated)
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim) == (4 // ranks, 4 // ranks, 16)
    assert mlp.size == 128 // ranks
    assert (part.hidden_size, part.vocab_size) == (TINY.hidden_size, TINY.vocab_size)


def test_a_head_of_keys_is_on_several_ranks_where_there_are_fewer_of_them() -> None:
    config = PRESETS["qwen3-tiny"]  # 4 heads, 2 of keys
    assert part_of("m", config, of(4)).attention[1].kv_heads == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_heads_and_channels_of_recurrent_layers_are_cut(ranks: int) -> None:
    delta = part_of("m", PRESETS["qwen3.5-tiny"], of(ranks)).recurrent[0]
    kimi = part_of("m", PRESETS["kimi-linear-tiny"], of(ranks)).recurrent[0]
    convolution = part_of("m", PRESETS["lfm2-tiny"], of(ranks)).recurrent[0]
    assert isinstance(delta, GatedDelta)
    assert isinstance(kimi, KimiDelta)
    assert isinstance(convolution, ShortConv)
    assert (delta.key_heads, delta.value_heads) == (1, 4 // ranks)
    assert (kimi.heads, convolution.channels) == (4 // ranks, 64 // ranks)
    latent = part_of("m", PRESETS["kimi-linear-tiny"], of(ranks)).attention[0]
    assert isinstance(latent, Latent)
    assert latent.heads == 4 // ranks


def test_a_group_of_a_state_space_is_on_several_ranks_where_there_are_fewer_of_them() -> None:
    config = PRESETS["granite-hybrid-tiny"]  # 4 heads in 2 groups

    def mamba(ranks: int, rank: int) -> Mamba2:
        mixer = part_of("m", config, of(ranks, rank)).recurrent[0]
        assert isinstance(mixer, Mamba2)
        return mixer

    assert (mamba(2, 1).heads, mamba(2, 1).groups, mamba(2, 1).spread) == (2, 1, None)
    for rank, group in enumerate((0, 0, 1, 1)):
        part = mamba(4, rank)
        assert (part.heads, part.groups) == (1, 1)
        assert part.spread == SpreadGroup(number=group, groups=2, ranks=2)


def test_a_layer_of_one_half_is_cut_as_it_is() -> None:
    config = PRESETS["nemotron-h-tiny"]
    for whole, part in zip(config.layers, part_of("m", config, of(2)).layers, strict=True):
        assert (whole.mixer is None) == (part.mixer is None)
        assert (whole.feed_forward is None) == (part.feed_forward is None)


def test_experts_are_cut_by_their_width_or_dealt_out_whole() -> None:
    by_width = part_of("m", EXPERTS, of(4)).layers[1].feed_forward
    dealt = part_of("m", EXPERTS, of(4, 2, whole_experts=True)).layers[1].feed_forward
    assert isinstance(by_width, Experts)
    assert isinstance(dealt, Experts)
    assert (by_width.each.size, by_width.held) == (16, range(8))
    assert (dealt.each.size, dealt.held) == (64, range(4, 6))
    assert dealt.router == by_width.router


@pytest.mark.parametrize("whole_experts", [False, True])
@pytest.mark.parametrize(
    "kind", ["qwen3-moe-tiny-4", "glm4-moe-tiny", "gpt-oss-tiny", "nemotron-h-tiny"]
)
def test_parts_hold_all_weights_and_what_is_whole_once_more(kind: str, whole_experts: bool) -> None:
    """What is not cut is known by the numbers: embedding, head, norms, routers, added biases."""
    config = PRESETS[kind]
    parts = [part_of("m", config, of(2, rank, whole_experts=whole_experts)) for rank in (0, 1)]
    total = sum(part.num_parameters for part in parts)
    more = total - config.num_parameters
    embedding = 2 * config.vocab_size * config.hidden_size
    assert embedding < more < embedding + 0.1 * config.num_parameters


@pytest.mark.parametrize(
    ("kind", "ranks", "said"),
    [
        ("qwen3-tiny-4", 3, "4 heads are not a multiple of 3; what can be had: 2, 4"),
        ("gpt-oss-tiny", 16, "8 heads are not a multiple of 16; what can be had: 2, 4, 8"),
        ("deepseek-v4-tiny", 4, "2 groups of heads are not a multiple of 4; what can be had: 2"),
        ("deepseek-v3-tiny", 8, "4 heads are not a multiple of 8; what can be had: 2, 4"),
        ("qwen2-moe-tiny", 3, "32 columns of the feed-forward are not a multiple of 3"),
        ("lfm2-tiny", 3, "64 channels are not a multiple of 3; what can be had: 2, 4"),
        ("qwen3.5-tiny", 8, "4 heads of values are not a multiple of 8; what can be had: 2, 4"),
        ("qwen3.5-100m", 2, "3 heads of keys are neither a multiple nor a divisor of 2"),
        ("granite-hybrid-tiny", 3, "4 heads are not a multiple of 3; what can be had: 2, 4"),
        ("kimi-linear-tiny", 3, "4 heads are not a multiple of 3; what can be had: 2, 4"),
    ],
)
def test_what_cannot_be_cut_is_said_with_the_numbers_that_can(
    kind: str, ranks: int, said: str
) -> None:
    message = refusal(PRESETS[kind], of(ranks))
    assert message.startswith(f"m: --tensor-parallel {ranks} cannot be had: ")
    assert said in message


def test_heads_of_keys_that_are_neither_multiple_nor_divisor_are_refused() -> None:
    mixer = Attention(heads=12, kv_heads=4, head_dim=16)
    layers = (replace(TINY.layers[0], mixer=mixer, feed_forward=Gated(size=96)),)
    message = refusal(replace(TINY, layers=layers), of(6))
    assert "4 heads of keys are neither" in message
    assert message.endswith("what can be had: 2, 4, 12")


def test_groups_that_are_neither_multiple_nor_divisor_are_refused() -> None:
    config = PRESETS["granite-hybrid-tiny"]
    mixer = Mamba2(heads=12, head_dim=12, groups=3, state_dim=16, taps=4)
    layers = tuple(
        replace(layer, mixer=mixer) if isinstance(layer.mixer, Mamba2) else layer
        for layer in config.layers
    )
    changed = replace(config, layers=layers)
    assert "3 groups of heads are neither a multiple nor a divisor of 2" in refusal(changed, of(2))


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("qwen3.5-tiny", [2, 4]),
        ("olmo2-tiny", [2, 4]),
        ("minimax-m2-tiny", [2]),
        ("nemotron-h-tiny", [2, 4]),
        ("qwen3.5-100m", []),
    ],
)
def test_the_numbers_of_ranks_that_can_be_had(kind: str, numbers: list[int]) -> None:
    assert fitting_ranks(PRESETS[kind], of(2)) == numbers


def test_whole_experts_have_to_be_there_and_to_divide() -> None:
    assert "has no experts" in refusal(TINY, of(2, whole_experts=True))
    layer = EXPERTS.layers[1]
    assert isinstance(layer.feed_forward, Experts)
    router = replace(layer.feed_forward.router, num_experts=6)
    layers = (replace(layer, feed_forward=replace(layer.feed_forward, router=router)),)
    message = refusal(replace(EXPERTS, layers=layers), of(4, whole_experts=True))
    assert "6 experts are not a multiple of 4" in message


@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (0, 0), (MOST_RANKS + 1, 0), (2, 2), (2, -1)])
def test_a_rank_that_is_not_among_the_others_is_none(ranks: int, rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of {ranks}"):
        of(ranks, rank)
