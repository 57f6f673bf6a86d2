"""A rank's part: sizes that divide, tensors that are cut; what cannot be cut is said by name."""

from dataclasses import replace

import pytest

from runtime.model.config import Attention, Experts, Gated, LoadError, ModelConfig
from runtime.model.partition import MOST_RANKS, Cut, Partition, cut_of, is_added_once, part_of
from runtime.model.presets import PRESETS

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
    name = "model.layers.1.self_attn.k_proj.weight"
    assert [cut_of(name, config, of(4, rank)) for rank in range(4)] == [
        Cut(axis=0, parts=2, part=part) for part in (0, 0, 1, 1)
    ]


def test_experts_are_cut_by_their_width_or_dealt_out_whole() -> None:
    by_width = part_of("m", EXPERTS, of(4)).layers[1].feed_forward
    dealt = part_of("m", EXPERTS, of(4, 2, whole_experts=True)).layers[1].feed_forward
    assert isinstance(by_width, Experts)
    assert isinstance(dealt, Experts)
    assert (by_width.each.size, by_width.held) == (16, range(8))
    assert (dealt.each.size, dealt.held) == (64, range(4, 6))
    assert dealt.router == by_width.router


@pytest.mark.parametrize("whole_experts", [False, True])
@pytest.mark.parametrize("kind", ["qwen3-moe-tiny-4", "glm4-moe-tiny", "gpt-oss-tiny"])
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
        ("lfm2-tiny", 2, "layers of ShortConv cannot be cut yet"),
        ("qwen3.5-tiny", 2, "layers of GatedDelta cannot be cut yet"),
        ("kimi-linear-tiny", 2, "layers of KimiDelta cannot be cut yet"),
        ("olmo2-tiny", 2, "queries are normed over all heads together"),
        ("minimax-m2-tiny", 2, "queries are normed over all heads together"),
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


def test_gated_latents_are_refused() -> None:
    layer = PRESETS["deepseek-v3-tiny"].layers[0]
    layers = (replace(layer, mixer=replace(layer.mixer, gated=True)),)
    assert "gated cannot be cut" in refusal(replace(TINY, layers=layers), of(2))


def test_gated_attention_is_refused() -> None:
    mixer = Attention(heads=4, kv_heads=4, head_dim=16, gated=True)
    layers = (replace(TINY.layers[0], mixer=mixer),)
    assert "gated cannot be cut" in refusal(replace(TINY, layers=layers), of(2))


def test_whole_experts_have_to_be_there_and_to_divide() -> None:
    assert "has no experts" in refusal(TINY, of(2, whole_experts=True))
    layer = EXPERTS.layers[1]
    assert isinstance(layer.feed_forward, Experts)
    router = replace(layer.feed_forward.router, num_experts=6)
    layers = (replace(layer, feed_forward=replace(layer.feed_forward, router=router)),)
    message = refusal(replace(EXPERTS, layers=layers), of(4, whole_experts=True))
    assert "6 experts are not a multiple of 4" in message


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("self_attn.q_proj.weight", Cut(axis=0, parts=2, part=1)),
        ("self_attn.v_proj.bias", Cut(axis=0, parts=2, part=1)),
        ("self_attn.sinks", Cut(axis=0, parts=2, part=1)),
        ("self_attn.o_proj.weight", Cut(axis=1, parts=2, part=1)),
        ("self_attn.o_proj.bias", None),
        ("self_attn.q_norm.weight", None),
        ("mlp.gate_proj.weight", Cut(axis=0, parts=2, part=1)),
        ("mlp.down_proj.weight", Cut(axis=1, parts=2, part=1)),
        ("mlp.down_proj.bias", None),
        ("mlp.gate.weight", None),
        ("mlp.gate.e_score_correction_bias", None),
        ("mlp.experts.3.up_proj.bias", Cut(axis=0, parts=2, part=1)),
        ("mlp.shared_expert.down_proj.weight", Cut(axis=1, parts=2, part=1)),
        ("mlp.shared_expert_gate.weight", None),
        ("input_layernorm.weight", None),
    ],
)
def test_each_tensor_is_cut_where_it_has_to_be(name: str, cut: Cut | None) -> None:
    assert cut_of(f"model.layers.1.{name}", EXPERTS, of(2, 1)) == cut


def test_whole_experts_tensors_are_whole_and_a_shared_ones_are_cut() -> None:
    dealt = of(2, 1, whole_experts=True)
    prefix = "model.layers.1.mlp"
    assert cut_of(f"{prefix}.experts.5.down_proj.weight", EXPERTS, dealt) is None
    assert cut_of(f"{prefix}.shared_expert.up_proj.weight", EXPERTS, dealt) is not None
    assert not is_added_once(f"{prefix}.experts.5.down_proj.bias", dealt)
    assert is_added_once(f"{prefix}.experts.5.down_proj.bias", of(2, 1))
    assert is_added_once("model.layers.0.self_attn.o_proj.bias", dealt)


def test_nothing_outside_the_layers_is_cut() -> None:
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"):
        assert cut_of(name, TINY, of(4)) is None


@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (0, 0), (MOST_RANKS + 1, 0), (2, 2), (2, -1)])
def test_a_rank_that_is_not_among_the_others_is_none(ranks: int, rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of {ranks}"):
        of(ranks, rank)
