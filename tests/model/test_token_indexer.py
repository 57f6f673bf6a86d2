"""What a layer's scores are made of, and the choice that stands from layer to layer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.latent_attention import latent_attention
from runtime.model.batch import SequenceInput
from runtime.model.latent import Indexer
from runtime.model.layers import MapLoader
from runtime.model.presets import PRESETS, random_model_config
from runtime.model.random_weights import RandomWeights
from runtime.model.rotary import RotaryTable
from runtime.model.runner import ModelRunner
from runtime.model.token_indexer import StepChoice, TokenIndexer
from runtime.model.weights import LoadedModel, load_model
from tests.support.paged_contexts import make_contexts
from tests.support.preset_kinds import SPARSE

CPU = torch.device("cpu")
TOKENS = 70


def model_of(kind: str, dtype: torch.dtype = torch.float64) -> LoadedModel:
    return load_model(f"random:{kind}", dtype=dtype, device=CPU)


def step(start: int, count: int) -> SequenceInput:
    tokens = np.random.default_rng(0).integers(0, 256, TOKENS, dtype=np.int32)
    return SequenceInput(
        tokens=tokens[start : start + count],
        start=start,
        block_table=np.arange(9, dtype=np.int32)[::-1].copy(),
        num_logits=count,
    )


def indexer_of(kind: str) -> tuple[TokenIndexer, RotaryTable]:
    config = random_model_config(kind)
    spec = config.layers[0].mixer
    loader = MapLoader(source=RandomWeights(0, torch.float64, CPU))
    name = "model.layers.0.self_attn"
    made = TokenIndexer(spec, spec.indexer, name, config.hidden_size, loader)
    return made, RotaryTable(spec.rope, spec.rotary_dim, torch.float64, CPU)


@pytest.mark.parametrize("kind", SPARSE)
def test_index_keys_are_written_as_they_were_whatever_is_written_with_them(kind: str) -> None:
    indexer, table = indexer_of(kind)
    config = random_model_config(kind)
    dim = config.layers[0].mixer.indexer.dim
    x = torch.randn(20, config.hidden_size, dtype=torch.float64)
    whole, parts = torch.zeros(2, 4, 1, 8, dim, dtype=torch.float64)
    slots = torch.randperm(32)[:20]
    indexer.write_keys(x, table.at(torch.arange(20), 19), whole, slots)
    for at in range(20):
        one = slice(at, at + 1)
        indexer.write_keys(x[one], table.at(torch.tensor([at]), at), parts, slots[one])
    assert torch.allclose(whole, parts, rtol=1e-12, atol=1e-12)
    written = whole.view(32, dim)[slots]
    assert written.abs().sum(1).min() > 0


def test_a_step_in_which_nobody_chooses_has_no_choice() -> None:
    layout = make_contexts([(16, 3)], seed=0, dtype=torch.float32).layout
    choice = StepChoice(layout, Indexer(heads=1, dim=8, top_k=16), 16)
    assert choice.rows is None
    indexer, table = indexer_of("deepseek-v32-tiny")
    indexer.choose(
        torch.zeros(3, 64), torch.zeros(3, 20), table.at(torch.arange(3), 2), Tensor(), choice
    )
    with pytest.raises(AssertionError, match="the first layer chooses"):
        _ = choice.slots


@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_prompt_in_chunks_has_the_logits_of_a_whole_one(kind: str, dtype: torch.dtype) -> None:
    def logits(chunk: int) -> Tensor:
        runner = ModelRunner(model_of(kind, dtype), num_blocks=9, block_size=8)
        starts = range(0, TOKENS, chunk)
        return torch.cat([runner.run([step(at, min(chunk, TOKENS - at))]).clone() for at in starts])

    whole = logits(TOKENS)[:, :256]
    limit = {torch.float64: 1e-10, torch.float32: 1e-4}.get(dtype, 0.1)
    for chunk in (1, 7, 33):
        errors = (logits(chunk)[:, :256] - whole).norm(dim=1) / whole.norm(dim=1)
        assert errors.median() <= limit
        assert dtype == torch.bfloat16 or errors.max() <= limit


@pytest.mark.parametrize("kind", SPARSE)
def test_a_query_is_not_told_of_tokens_that_it_has_not_chosen(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more to choose than there are, all are seen, and that is another model."""
    chosen = ModelRunner(model_of(kind), num_blocks=9, block_size=8).run([step(0, TOKENS)]).clone()
    config = PRESETS[kind]
    layers = tuple(
        replace(
            layer,
            mixer=replace(layer.mixer, indexer=replace(layer.mixer.indexer, top_k=TOKENS)),
        )
        for layer in config.layers
    )
    monkeypatch.setitem(PRESETS, kind, replace(config, layers=layers))
    whole = ModelRunner(model_of(kind), num_blocks=9, block_size=8).run([step(0, TOKENS)])
    first = config.top_k
    assert torch.allclose(chosen[:first], whole[:first], rtol=1e-9, atol=1e-9)
    different = (chosen - whole)[first:, :256].norm(dim=1) / whole[first:, :256].norm(dim=1)
    assert (different > 1e-3).all()


def test_a_context_that_all_see_is_attended_to_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scores, and no row is gathered."""
    asked: list[int] = []

    def noting(queries: tuple[Tensor, Tensor], *more: object, **named: float) -> Tensor:
        asked.append(len(queries[0]))
        return latent_attention(queries, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("runtime.model.latent_mixer.latent_attention", noting)
    for name in ("latent_mixer.chosen_attention", "token_indexer.chosen_slots"):
        monkeypatch.setattr(f"runtime.model.{name}", None)
    runner = ModelRunner(model_of("deepseek-v32-tiny"), num_blocks=9, block_size=8)
    runner.run([step(0, 10)])
    runner.run([step(10, 6)])
    assert asked == [10] * 3 + [6] * 3
    with pytest.raises(TypeError):
        runner.run([step(16, 1)])
