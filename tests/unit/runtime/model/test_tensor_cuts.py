"""Each tensor is cut as its layer computes, and the parts of all ranks are the whole."""

import pytest

from runtime.model.partition import Partition
from runtime.model.presets import PRESETS
from runtime.model.tensor_cuts import (
    Cut,
    Segment,
    SegmentedCut,
    Spans,
    cut_of,
    is_added_once,
)

TINY, EXPERTS = PRESETS["qwen3-tiny-4"], PRESETS["qwen3-moe-tiny-4"]
SECOND = Cut(axis=0, parts=2, part=1)


def of(ranks: int, rank: int = 0, *, whole_experts: bool = False) -> Partition:
    return Partition(ranks=ranks, rank=rank, whole_experts=whole_experts)


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


def test_a_head_of_keys_is_on_several_ranks_where_there_are_fewer_of_them() -> None:
    config = PRESETS["qwen3-tiny"]  # 4 heads, 2 of keys
    name = "model.layers.1.self_attn.k_proj.weight"
    assert [cut_of(name, config, of(4, rank)) for rank in range(4)] == [
        Cut(axis=0, parts=2, part=part) for part in (0, 0, 1, 1)
    ]


def of_recurrent(kind: str, rest: str, partition: Partition) -> Cut | SegmentedCut | None:
    """Of the first layer, which is recurrent."""
    return cut_of(f"model.layers.0.{rest}", PRESETS[kind], partition)


@pytest.mark.parametrize(
    ("kind", "name", "cut"),
    [
        ("qwen3.5-tiny", "linear_attn.in_proj_q.weight", SECOND),
        ("qwen3.5-tiny", "linear_attn.in_proj_z.weight", SECOND),
        ("qwen3.5-tiny", "linear_attn.in_proj_a.weight", SECOND),
        ("qwen3.5-tiny", "linear_attn.A_log", SECOND),
        ("qwen3.5-tiny", "linear_attn.dt_bias", SECOND),
        ("qwen3.5-tiny", "linear_attn.gated_norm.scale", None),
        ("qwen3.5-tiny", "linear_attn.out_proj.weight", Cut(axis=1, parts=2, part=1)),
        ("kimi-linear-tiny", "linear_attn.q_proj.weight", SECOND),
        ("kimi-linear-tiny", "linear_attn.v_conv1d.weight", SECOND),
        ("kimi-linear-tiny", "linear_attn.f_a_proj.weight", None),
        ("kimi-linear-tiny", "linear_attn.g_a_proj.weight", None),
        ("kimi-linear-tiny", "linear_attn.f_b_proj.weight", SECOND),
        ("kimi-linear-tiny", "linear_attn.b_proj.weight", SECOND),
        ("kimi-linear-tiny", "linear_attn.A_log", Cut(axis=2, parts=2, part=1)),
        ("kimi-linear-tiny", "linear_attn.dt_bias", SECOND),
        ("kimi-linear-tiny", "linear_attn.o_norm.weight", None),
        ("kimi-linear-tiny", "linear_attn.o_proj.weight", Cut(axis=1, parts=2, part=1)),
        ("granite-hybrid-tiny", "mamba.A_log", SECOND),
        ("granite-hybrid-tiny", "mamba.skip", SECOND),
        ("granite-hybrid-tiny", "mamba.gated_norm.scale", SECOND),
        ("granite-hybrid-tiny", "mamba.out_proj.weight", Cut(axis=1, parts=2, part=1)),
        ("granite-hybrid-tiny", "mamba.out_proj.bias", None),
        ("lfm2-tiny", "conv.conv.weight", SECOND),
        ("lfm2-tiny", "conv.conv.bias", SECOND),
        ("lfm2-tiny", "conv.out_proj.weight", Cut(axis=1, parts=2, part=1)),
        ("lfm2-tiny", "conv.out_proj.bias", None),
    ],
)
def test_tensors_of_recurrent_layers_are_cut_by_heads_or_channels(
    kind: str, name: str, cut: Cut | None
) -> None:
    assert of_recurrent(kind, name, of(2, 1)) == cut


@pytest.mark.parametrize(
    ("kind", "name", "part", "ranks", "spans"),
    [
        # 3 x 64 channels
        ("lfm2-tiny", "conv.in_proj.weight", (96, 64), 2, [(32, 32), (96, 32), (160, 32)]),
        ("lfm2-tiny", "conv.in_proj.bias", (96,), 2, [(32, 32), (96, 32), (160, 32)]),
        # 2 heads of keys of 16, 4 of values of 12
        (
            "qwen3.5-tiny",
            "linear_attn.conv1d.weight",
            (56, 1, 4),
            2,
            [(16, 16), (48, 16), (88, 24)],
        ),
        (
            "qwen3.5-tiny",
            "linear_attn.conv1d.weight",
            (44, 1, 4),
            4,
            [(16, 16), (48, 16), (100, 12)],
        ),
        # gates and heads of 4 x 12, 2 groups of 16 twice, 4 steps
        (
            "granite-hybrid-tiny",
            "mamba.in_proj.weight",
            (82, 64),
            2,
            [(24, 24), (72, 24), (112, 16), (144, 16), (162, 2)],
        ),
        (
            "granite-hybrid-tiny",
            "mamba.in_proj.bias",
            (57,),
            4,
            [(36, 12), (84, 12), (112, 16), (144, 16), (163, 1)],
        ),
        ("granite-hybrid-tiny", "mamba.conv1d.bias", (56,), 2, [(24, 24), (64, 16), (96, 16)]),
    ],
)
def test_what_is_computed_apart_is_cut_segment_by_segment(
    kind: str, name: str, part: tuple[int, ...], ranks: int, spans: Spans
) -> None:
    """Of the last rank."""
    cut = of_recurrent(kind, name, of(ranks, ranks - 1))
    assert isinstance(cut, SegmentedCut)
    assert cut.spans(part) == spans
    assert sum(size for _, size in spans) == part[0]
    assert cut.whole(part)[1:] == part[1:]


@pytest.mark.parametrize("kind", ["qwen3.5-tiny", "granite-hybrid-tiny", "kimi-linear-tiny"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_rows_of_a_convolution_are_on_some_rank(kind: str, ranks: int) -> None:
    name = "mamba.conv1d.weight" if "granite" in kind else "linear_attn.conv1d.weight"
    if "kimi" in kind:
        name = "linear_attn.q_conv1d.weight"
    rows: set[int] = set()
    total = 0
    for rank in range(ranks):
        cut = of_recurrent(kind, name, of(ranks, rank))
        assert cut is not None
        mixer = PRESETS[kind].recurrent[0]
        size = mixer.channels // 3 if "kimi" in kind else mixer.channels
        part = (size // ranks,)
        if isinstance(cut, SegmentedCut):
            part = (sum(each.size // each.parts for each in cut.segments),)
        total = cut.whole(part)[0]
        rows.update(*(range(low, low + many) for low, many in cut.spans(part)))
        assert total == size
    assert rows == set(range(total))


def test_a_segments_part_is_its_own() -> None:
    cut = SegmentedCut(
        segments=(Segment(size=8, parts=4, part=3), Segment(size=6, parts=2, part=0))
    )
    assert (cut.axis, cut.spans((5, 3)), cut.whole((5, 3))) == (0, [(6, 2), (8, 3)], (14, 3))


def test_norms_over_all_heads_are_cut_as_the_heads_are() -> None:
    olmo, qwen = PRESETS["olmo2-tiny"], PRESETS["qwen3-tiny"]
    query, key = (f"model.layers.0.self_attn.{each}_norm.weight" for each in "qk")
    assert cut_of(query, olmo, of(4, 3)) == Cut(axis=0, parts=4, part=3)
    kv_heads = olmo.layers[0].mixer.kv_heads  # type: ignore[union-attr]
    parts = min(4, kv_heads)
    assert cut_of(key, olmo, of(4, 3)) == Cut(axis=0, parts=parts, part=parts - 1)
    assert cut_of(query, qwen, of(2)) is None
    assert cut_of(key, qwen, of(2)) is None


def test_biases_of_maps_whose_inputs_are_cut_are_added_once() -> None:
    for name in ("conv.out_proj.bias", "mamba.out_proj.bias", "self_attn.o_proj.bias"):
        assert is_added_once(f"model.layers.3.{name}", of(2))
    for name in ("conv.in_proj.bias", "mamba.in_proj.bias", "mamba.dt_bias", "conv.conv.bias"):
        assert not is_added_once(f"model.layers.3.{name}", of(2))
