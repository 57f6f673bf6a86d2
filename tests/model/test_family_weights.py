"""Tensors by the decoder's names out of checkpoints with names of their own."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from runtime.model.config import Attention, Experts, Gated, Layer, LoadError, ModelConfig, Router
from runtime.model.family import TensorNames
from runtime.model.family_weights import FamilyWeights
from runtime.model.hf_config import FAMILIES
from runtime.model.presets import random_model_config

HIDDEN = 6


def config_of(*feed_forwards: Gated | Experts, tied: bool = False) -> ModelConfig:
    mixer = Attention(heads=3, kv_heads=1, head_dim=2)
    return ModelConfig(
        model_type="test",
        vocab_size=9,
        hidden_size=HIDDEN,
        layers=tuple(Layer(mixer=mixer, feed_forward=each) for each in feed_forwards),
        max_context_tokens=8,
        tie_embeddings=tied,
    )


CONFIG = config_of(Gated(size=4))


class Tensors:
    """A checkpoint in memory."""

    folder = Path("folder")

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def stored(self, name: str) -> Tensor:
        return self.tensors[name]

    def place(self, name: str) -> Path:
        return self.folder / name

    def as_own(self, matrix: Tensor) -> Tensor:
        return matrix.clone()

    def names(self) -> Sequence[str]:
        return list(self.tensors)

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        wide: bool = False,
        part: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        whole = self.tensors[name]
        assert whole.shape == shape, name
        return (whole if part is None else part(whole)).clone().to(torch.float64 if wide else None)


def weights(names: TensorNames, config: ModelConfig = CONFIG, **tensors: Tensor) -> FamilyWeights:
    return FamilyWeights(Tensors(**tensors), names, config)


def test_rows_of_fused_tensors_are_those_of_their_parts() -> None:
    qkv, gate_up = torch.arange(60.0).view(10, 6), torch.arange(48.0).view(8, 6)
    source = weights(
        FAMILIES["phi3"].names,
        model__layers__0__self_attn__qkv_proj__weight=qkv,
        model__layers__0__mlp__gate_up_proj__weight=gate_up,
    )
    for name, expected in (
        ("self_attn.q_proj", qkv[:6]),
        ("self_attn.k_proj", qkv[6:8]),
        ("self_attn.v_proj", qkv[8:]),
        ("mlp.gate_proj", gate_up[:4]),
        ("mlp.up_proj", gate_up[4:]),
    ):
        found = source.tensor(f"model.layers.0.{name}.weight", tuple(expected.shape))
        assert torch.equal(found, expected), name
    source.check_all_read()


def test_stacked_experts_are_taken_apart() -> None:
    experts = Experts(
        router=Router(num_experts=2, per_token=1, normalise=True),
        each=Gated(size=4, bias=True, activation="clamped_swiglu", limit=7.0),
    )
    gate_up, down = torch.randn(2, HIDDEN, 8), torch.randn(2, 4, HIDDEN)
    gate_up_bias, down_bias = torch.randn(2, 8), torch.randn(2, HIDDEN)
    source = weights(
        FAMILIES["gpt_oss"].names,
        config_of(experts),
        model__layers__0__mlp__experts__gate_up_proj=gate_up,
        model__layers__0__mlp__experts__gate_up_proj_bias=gate_up_bias,
        model__layers__0__mlp__experts__down_proj=down,
        model__layers__0__mlp__experts__down_proj_bias=down_bias,
    )
    for index in range(2):
        for name, expected in (
            ("gate_proj.weight", gate_up[index, :, ::2].T),
            ("up_proj.weight", gate_up[index, :, 1::2].T),
            ("down_proj.weight", down[index].T),
            ("gate_proj.bias", gate_up_bias[index, ::2]),
            ("up_proj.bias", gate_up_bias[index, 1::2]),
            ("down_proj.bias", down_bias[index]),
        ):
            full = f"model.layers.0.mlp.experts.{index}.{name}"
            assert torch.equal(source.tensor(full, tuple(expected.shape)), expected), name
    source.check_all_read()


def test_stacks_of_one_map_are_taken_apart_and_experts_may_lie_one_by_one() -> None:
    """As Step 3.5 is published, and as programs write it that quantise."""
    experts = Experts(router=Router(num_experts=2, per_token=1, normalise=True), each=Gated(size=4))
    kinds = {"gate": torch.randn(2, 4, HIDDEN), "up": torch.randn(2, 4, HIDDEN)}
    kinds["down"] = torch.randn(2, HIDDEN, 4)
    names, layer = FAMILIES["step3p5"].names, "model__layers__0__moe"
    stacked = {f"{layer}__{kind}_proj__weight": stack for kind, stack in kinds.items()}
    alone = {
        f"{layer}__experts__{index}__{kind}_proj__weight": stack[index]
        for kind, stack in kinds.items()
        for index in range(2)
    }
    for tensors in (stacked, alone):
        source = weights(names, config_of(experts), **tensors)
        for kind, stack in kinds.items():
            for index in range(2):
                full = f"model.layers.0.mlp.experts.{index}.{kind}_proj.weight"
                shape = tuple(stack.shape[1:])
                assert torch.equal(source.tensor(full, shape), stack[index]), full
                assert torch.equal(source.matrix(full, shape), stack[index]), full
        source.check_all_read()


def test_a_tensor_may_lie_in_several_of_any_sizes_and_a_norm_under_another_name() -> None:
    """As OLMo Hybrid is published, and as ``transformers`` saves it."""
    names, name = FAMILIES["olmo_hybrid"].names, "model.layers.0.linear_attn.conv1d.weight"
    taps, norm = torch.randn(11, 1, 4), torch.randn(HIDDEN)
    after = "model.layers.0.after_mixer_norm.weight"
    for cuts, called in (
        ((3, 3, 5), "post_attention_layernorm"),
        ((4, 4, 3), "feedforward_layer_norm"),
    ):
        parts = {
            f"model__layers__0__linear_attn__{part}_conv1d__weight": rows
            for part, rows in zip("qkv", taps.split(cuts), strict=True)
        }
        source = weights(names, **parts, **{f"model__layers__0__{called}__weight": norm})
        assert torch.equal(source.tensor(name, (11, 1, 4)), taps)
        assert torch.equal(source.tensor(after, (HIDDEN,)), norm)
        with pytest.raises(LoadError, match=r"have 11 rows, config\.json asks for 12"):
            source.tensor(name, (12, 1, 4))
        source.check_all_read()


def test_tensors_in_no_layer_may_have_other_names_and_none_begin_with_model() -> None:
    embedding, head = torch.randn(2, 9, HIDDEN)
    names = FAMILIES["deepseek_v4"].names
    for own, last in (("embed__weight", "head__weight"), ("model__embed_tokens__weight",) * 2):
        tensors = {own: embedding, "model__norm__weight": torch.ones(HIDDEN)}
        if last != own:
            tensors = {own: embedding, "norm__weight": torch.ones(HIDDEN), last: head}
        source = weights(names, config_of(Gated(size=4), tied=last == own), **tensors)
        found = source.tensor("model.embed_tokens.weight", (9, HIDDEN))
        assert torch.equal(found, embedding)
        source.tensor("model.norm.weight", (HIDDEN,))
        if last != own:
            assert torch.equal(source.tensor("lm_head.weight", (9, HIDDEN)), head)
        source.check_all_read()


@pytest.mark.parametrize(
    ("family", "name", "theirs"),
    [
        ("deepseek_v4", "self_attn.q_a_proj", "attn.wq_a"),
        ("deepseek_v4", "self_attn.kv_norm", "attn.kv_norm"),
        ("deepseek_v4", "self_attn.compressor.gate_proj", "attn.compressor.wgate"),
        ("deepseek_v4", "self_attn.compressor.indexer.kv_norm", "attn.indexer.compressor.norm"),
        ("deepseek_v4", "self_attn.compressor.indexer.q_b_proj", "attn.indexer.wq_b"),
        ("deepseek_v4", "post_attention_layernorm", "ffn_norm"),
        ("deepseek_v4", "mlp.shared_expert.up_proj", "ffn.shared_experts.w3"),
        ("deepseek_v4", "mlp.experts.3.down_proj", "ffn.experts.3.w2"),
        ("deepseek_v4", "mlp.gate", "ffn.gate"),
        ("gemma3_text", "post_attention_layernorm", "pre_feedforward_layernorm"),
        ("gemma3_text", "after_mixer_norm", "post_attention_layernorm"),
        ("gemma3_text", "after_mlp_norm", "post_feedforward_layernorm"),
        ("gemma3_text", "self_attn.q_norm", "self_attn.q_norm"),
        ("gemma4_text", "post_attention_layernorm", "pre_feedforward_layernorm"),
        ("gemma4_text", "after_mixer_norm", "post_attention_layernorm"),
        ("gemma4_text", "after_mlp_norm", "post_feedforward_layernorm"),
        ("gemma4_text", "after_dense_norm", "post_feedforward_layernorm_1"),
        ("gemma4_text", "before_experts_norm", "pre_feedforward_layernorm_2"),
        ("gemma4_text", "after_experts_norm", "post_feedforward_layernorm_2"),
        ("gemma4_text", "mlp.gate", "router.proj"),
        ("gemma4_text", "mlp.gate_proj", "mlp.gate_proj"),
        ("gemma4_text", "mlp.shared_expert.gate_proj", "mlp.gate_proj"),
        ("olmo2", "after_mixer_norm", "post_attention_layernorm"),
        ("mixtral", "mlp.experts.3.up_proj", "block_sparse_moe.experts.3.w3"),
        ("mixtral", "mlp.gate", "block_sparse_moe.gate"),
        ("minimax_m2", "mlp.experts.0.down_proj", "block_sparse_moe.experts.0.w2"),
        ("glm4_moe", "mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"),
        ("deepseek_v3", "mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"),
        ("glm4_moe_lite", "self_attn.kv_a_layernorm", "self_attn.kv_a_layernorm"),
        ("gpt_oss", "mlp.gate", "mlp.router"),
    ],
)
def test_names_within_a_layer_are_the_familys_own(family: str, name: str, theirs: str) -> None:
    names, stored = FAMILIES[family].names, torch.randn(3)
    source = weights(names, **{f"model__layers__0__{theirs.replace('.', '__')}__weight": stored})
    added = 1 if family == "gemma3_text" else 0
    assert torch.equal(source.tensor(f"model.layers.0.{name}.weight", (3,)), stored + added)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("layer_scale", "layer_scalar"),
        ("mlp.gate.input_scale", "router.scale"),
        ("mlp.gate.expert_scale", "router.per_expert_scale"),
    ],
)
def test_scales_of_gemma_4_have_names_of_their_own(name: str, theirs: str) -> None:
    stored = torch.randn(3)
    tensors = {f"model__layers__0__{theirs.replace('.', '__')}": stored}
    source = weights(FAMILIES["gemma4_text"].names, **tensors)
    assert torch.equal(source.tensor(f"model.layers.0.{name}", (3,)), stored)


def test_what_would_make_keys_is_left_where_a_layer_reads_anothers() -> None:
    config = random_model_config("gemma4-tiny")
    beside = {
        f"model__layers__{layer}__self_attn__{part}__weight": torch.zeros(1)
        for layer in (3, 4)
        for part in ("k_proj", "v_proj", "k_norm", "v_norm")
    }
    source = weights(FAMILIES["gemma4_text"].names, config, **beside)
    source.check_all_read()
    assert source.left_as("model.layers.3.self_attn.k_proj.weight") == "*.k_proj.*"
    for layer, part in ((2, "k_proj"), (3, "q_proj"), (5, "k_proj")):
        assert source.left_as(f"model.layers.{layer}.self_attn.{part}.weight") is None


def test_a_correction_of_minimax_lies_beside_its_router() -> None:
    stored = torch.randn(3)
    tensors = {"model__layers__0__block_sparse_moe__e_score_correction_bias": stored}
    source = weights(FAMILIES["minimax_m2"].names, **tensors)
    name = "model.layers.0.mlp.gate.e_score_correction_bias"
    assert torch.equal(source.tensor(name, (3,), wide=True), stored.double())


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model", "lm_head"),
        ("model.language_model", "lm_head"),
        ("language_model.model", "language_model.lm_head"),
    ],
)
def test_the_text_part_of_a_wrapper_is_found_and_the_rest_left(prefix: str, head: str) -> None:
    tensors = {
        f"{prefix}.embed_tokens.weight": torch.zeros(9, 6),
        f"{prefix}.norm.weight": torch.ones(6),
        f"{head}.weight": torch.ones(9, 6),
        "model.vision_tower.patch.weight": torch.zeros(1),
        "multi_modal_projector.linear_1.weight": torch.zeros(1),
        "model.visual.blocks.0.norm.weight": torch.zeros(1),
        "model.embed_vision.embedding_projection.weight": torch.zeros(1),
        "model.embed_audio.embedding_projection.weight": torch.zeros(1),
        "model.vision_embedder.patch_dense.weight": torch.zeros(1),
        "mtp.norm.weight": torch.zeros(1),
    }
    checkpoint = Tensors()
    checkpoint.tensors = tensors
    source = FamilyWeights(checkpoint, TensorNames(), CONFIG)
    for name, shape in (
        ("model.embed_tokens.weight", (9, 6)),
        ("model.norm.weight", (6,)),
        ("lm_head.weight", (9, 6)),
    ):
        source.tensor(name, shape)
    source.check_all_read()


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.embed_tokens.weight_scale_inv",
        "lm_head.weight",
        "lm_head.bias",
    ],
)
def test_a_tensor_that_nobody_computes_with_is_an_error(name: str) -> None:
    source = weights(TensorNames(), **{name.replace(".", "__"): torch.zeros(1)})
    with pytest.raises(LoadError, match=f"folder: tensor '{name}' is nothing that model_type"):
        source.check_all_read()


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(
    "prefixes",
    [
        ("model.", ""),
        ("model.language_model.", ""),
        ("language_model.model.", "language_model."),
    ],
)
def test_a_head_is_left_where_the_embedding_is_one_and_has_its_numbers(
    family: str, prefixes: tuple[str, str]
) -> None:
    names, tied = FAMILIES[family].names, config_of(Gated(size=4), tied=True)
    numbers = torch.randn(5000, 3)
    embedding = prefixes[0] + names.embedding.removeprefix("model.") + ".weight"
    head = prefixes[1] + "lm_head.weight"

    def check(own: Tensor, config: ModelConfig = tied) -> None:
        source = weights(names, config, **{embedding: numbers, head: own})
        source.tensor("model.embed_tokens.weight", tuple(numbers.shape))
        source.check_all_read()

    check(numbers.clone())
    other = numbers.clone()
    other[4999, 2] += 1
    for own in (other, numbers[:, :2], numbers[:4096], numbers.T, torch.zeros(())):
        with pytest.raises(LoadError, match=f"'{head}' has other numbers than '{embedding}'"):
            check(own)


def test_what_brings_kimis_images_to_its_text_is_left() -> None:
    tied = config_of(Gated(size=4), tied=True)
    images = {"mm_projector__linear_1__weight": torch.zeros(1)}
    weights(FAMILIES["kimi_k2"].names, tied, **images).check_all_read()


def test_layers_that_predict_more_are_left() -> None:
    tied = config_of(Gated(size=4), tied=True)
    beyond = {"model__layers__1__eh_proj__weight": torch.zeros(1)}
    weights(FAMILIES["glm4_moe"].names, tied, **beyond).check_all_read()
    within = {"model__layers__0__eh_proj__weight": torch.zeros(1)}
    with pytest.raises(LoadError, match="eh_proj"):
        weights(FAMILIES["glm4_moe"].names, tied, **within).check_all_read()
