"""Random models: weights by seed and name, shapes by their own."""

import pytest
import torch

from runtime.model.compressed_presets import COMPRESSED_PRESETS
from runtime.model.config import LoadError
from runtime.model.dense_presets import DENSE_PRESETS
from runtime.model.expert_presets import EXPERT_PRESETS
from runtime.model.gemma_presets import GEMMA_PRESETS
from runtime.model.hybrid_presets import HYBRID_PRESETS
from runtime.model.latent_presets import LATENT_PRESETS
from runtime.model.preset_parts import SHAPING, TINY_VOCAB
from runtime.model.presets import PRESETS, random_model_config
from runtime.model.random_weights import RandomWeights
from tests.support.byte_tokenizer import SPECIAL_TOKENS

CPU = torch.device("cpu")


def test_a_tensor_depends_on_seed_and_name_alone() -> None:
    first, again = (RandomWeights(3, torch.float64, CPU) for _ in range(2))
    again.tensor("b.weight", (5, 5))
    assert torch.equal(first.tensor("a.weight", (4, 6)), again.tensor("a.weight", (4, 6)))
    assert not torch.equal(first.tensor("a.weight", (4, 6)), first.tensor("b.weight", (4, 6)))
    other = RandomWeights(4, torch.float64, CPU)
    assert not torch.equal(first.tensor("a.weight", (4, 6)), other.tensor("a.weight", (4, 6)))


def test_matrices_keep_the_variance_of_their_input() -> None:
    weight = RandomWeights(0, torch.float64, CPU).tensor("x_proj.weight", (400, 300))
    output = weight @ torch.randn(300, 50, dtype=torch.float64)
    assert 0.9 < output.std() < 1.1


def test_the_same_numbers_in_every_dtype() -> None:
    wide = RandomWeights(1, torch.float64, CPU).tensor("x.weight", (8, 8))
    narrow = RandomWeights(1, torch.bfloat16, CPU).tensor("x.weight", (8, 8))
    assert torch.equal(wide.to(torch.bfloat16), narrow)


@pytest.mark.parametrize(("name", "millions"), [("qwen3-100m", 100), ("qwen3-500m", 500)])
def test_sizes_are_near_their_names(name: str, millions: int) -> None:
    parameters = random_model_config(name).num_parameters / 1e6
    assert 0.7 * millions < parameters < 1.1 * millions


@pytest.mark.parametrize("name", PRESETS)
def test_the_end_of_turn_is_the_tokenizers(name: str) -> None:
    config = random_model_config(name)
    assert config.shaping is not None
    assert config.shaping.num_plain == 256
    assert config.shaping.end_of_turn == 256 + SPECIAL_TOKENS.index("<|im_end|>")
    assert config.vocab_size >= 256 + len(SPECIAL_TOKENS)


def test_models_with_recurrent_layers_are_those_of_a_module_of_their_own() -> None:
    """And all presets have what they share."""
    assert {name for name, config in PRESETS.items() if config.recurrent} == set(HYBRID_PRESETS)
    for name, config in PRESETS.items():
        assert config.shaping == SHAPING
        assert (config.vocab_size == TINY_VOCAB) == ("-tiny" in name), name


def test_other_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(LoadError, match=r"there are: afmoe-tiny, .*, qwen3-tiny"):
        random_model_config("gpt")


def test_gemma_4_has_presets_with_all_that_it_has() -> None:
    assert GEMMA_PRESETS.items() <= PRESETS.items()
    small, experts = GEMMA_PRESETS["gemma4-tiny"], GEMMA_PRESETS["gemma4-moe-tiny"]
    for config in (small, experts):
        assert len(config.kv_groups) == 2
        assert {layer.learnt_scale for layer in config.layers} == {True}
        assert config.logit_cap is not None
        windows = {mixer.window is None: mixer.head_dim for mixer in config.attention}
        assert windows[True] > windows[False]
    assert [mixer.shares for mixer in small.attention] == [None, None, None, 2, 1]
    assert small.layer_inputs is not None
    assert experts.has_experts
    assert [mixer.keys_are_values for mixer in experts.attention] == [False, True]


def test_dense_families_of_late_have_a_preset_each() -> None:
    assert DENSE_PRESETS.items() <= PRESETS.items()
    kinds = [config.model_type for config in DENSE_PRESETS.values()]
    assert kinds == ["seed_oss", "arcee", "glm4", "exaone4"]


def test_a_model_chooses_blocks_in_all_but_its_first_layer() -> None:
    assert EXPERT_PRESETS.items() <= PRESETS.items()
    m3 = EXPERT_PRESETS["minimax-m3-tiny"]
    assert [mixer.choice is None for mixer in m3.attention] == [True, False, False]
    assert m3.top_k == 32


def test_models_with_latents_are_among_the_others_and_choose_and_share() -> None:
    assert LATENT_PRESETS.items() <= PRESETS.items()
    indexers = {name: config.attention[0].indexer for name, config in LATENT_PRESETS.items()}
    assert sorted(name for name, each in indexers.items() if each is not None) == [
        "deepseek-v32-tiny",
        "glm-dsa-tiny",
        "hy4-tiny",
    ]
    shared = [mixer.indexer.shared for mixer in LATENT_PRESETS["glm-dsa-tiny"].attention]
    assert shared == [False, True, True, False]


def test_models_that_compress_are_among_the_others_and_have_layers_of_every_kind() -> None:
    assert COMPRESSED_PRESETS.items() <= PRESETS.items()
    config = COMPRESSED_PRESETS["deepseek-v4-tiny"]
    assert [mixer.ratio for mixer in config.attention] == [None, 4, 32, 4]
    assert config.streams is not None
    tables = [layer.feed_forward.router.table_rows for layer in config.layers]
    assert [rows is not None for rows in tables] == [True, False, False, False]


def test_a_random_table_has_experts_that_differ_in_each_row() -> None:
    table = RandomWeights(0, torch.bfloat16, CPU).tensor("gate.tid2eid", (50, 3), wide=True)
    assert {tuple(sorted(row)) for row in table.tolist()} == {(0.0, 1.0, 2.0)}
    assert len({tuple(row) for row in table.tolist()}) > 3


def test_a_hybrid_chooses_pools_between_streams_that_end_in_their_mean() -> None:
    config = PRESETS["glm5-next-tiny"]
    pools = {mixer.indexer.pool for mixer in config.attention}
    assert pools == {4}
    assert {mixer.lowest for mixer in config.recurrent} == {-5.0}
    assert config.streams is not None
    assert not config.streams.learnt_end


def test_a_hybrid_of_ling_makes_decays_in_one_step_and_gates_heads() -> None:
    config = PRESETS["ling3-tiny"]
    assert {mixer.gated for mixer in config.attention} == {"heads"}
    assert {mixer.two_steps for mixer in config.recurrent} == {False}
