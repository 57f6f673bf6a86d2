"""Every family's logits beside those of ``transformers``, in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.gemma4_unified import modeling_gemma4_unified

from runtime.model.batch import SequenceInput
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.family_shapes import (
    FAMILIES,
    SHAPES,
    VOCABULARY,
    WRAPPERS,
    make,
    make_wrapper,
    save,
)

CPU = torch.device("cpu")
PROMPTS = (1, 17, 600)
LIMIT = 1e-5


def norm_in_float64(norm: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """In the place of Gemma 4's in ``transformers``, which is in float32 whatever the model is in:
    its scores are not scaled, and what is lost in norms grows with each layer."""
    normed = x * (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    return normed * norm.weight if norm.with_scale else normed


@pytest.fixture(autouse=True)
def reference_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_gemma4.Gemma4RMSNorm, "forward", norm_in_float64)
    unified = modeling_gemma4_unified.Gemma4UnifiedRMSNorm
    monkeypatch.setattr(unified, "forward", norm_in_float64)


def logits(folder: Path, tokens: np.ndarray, serves: int | None) -> torch.Tensor:
    model = load_model(folder, dtype=torch.float64, device=CPU, max_context_tokens=serves)
    runner = ModelRunner(model, num_blocks=40, block_size=16)
    table = np.arange(40, dtype=np.int32)[::-1].copy()
    return runner.run(
        [SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=len(tokens))]
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.samples(2)
def test_logits_are_those_of_transformers(
    family: str,
    shape: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Angles are in float32, as ``transformers`` has them in every number type: at position 600
    they are off by more than all else together (those in float64 are ``test_rotary``'s)."""
    monkeypatch.setattr("runtime.model.rotary.angle_dtype", lambda dtype: torch.float32)
    seed = request.config.getoption("--seed")
    model = make(family, SHAPES[shape], seed=seed)
    compare(model, tmp_path, seed, SHAPES[shape].original)


@pytest.mark.samples(2)
@pytest.mark.parametrize("shape", ["below", "uneven"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_logits_of_a_wrappers_text_part_are_those_of_transformers(
    wrapper: str,
    shape: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.model.rotary.angle_dtype", lambda dtype: torch.float32)
    seed = request.config.getoption("--seed")
    model = make_wrapper(wrapper, SHAPES[shape], seed=seed)
    compare(model, tmp_path, seed, SHAPES[shape].original)


def scores_in_float64(model: transformers.PreTrainedModel) -> None:
    """``transformers`` rounds index scores to float32, in which some of these are all but equal."""
    as_they_were = torch.Tensor.float

    def widen(*_: object) -> None:
        torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]

    def restore(*_: object) -> None:
        torch.Tensor.float = as_they_were  # type: ignore[method-assign]

    for module in model.modules():
        if type(module).__name__.endswith("Indexer"):
            module.register_forward_pre_hook(widen)
            module.register_forward_hook(restore, always_call=True)


def compare(model: transformers.PreTrainedModel, folder: Path, seed: int, original: int) -> None:
    """``original``: positions of longrope's shorter factors. ``transformers`` takes factors by the
    prompt's length, we by what is served."""
    save(model, folder)
    model.double()
    scores_in_float64(model)
    for length in PROMPTS:
        tokens = np.random.default_rng(seed).integers(0, VOCABULARY, length, dtype=np.int32)
        with torch.inference_mode():
            expected = model(torch.from_numpy(tokens).long()[None]).logits[0].double()
        found = logits(folder, tokens, original if length <= original else None)
        difference = (found - expected).norm() / expected.norm()
        assert difference <= LIMIT, f"{length} tokens, seed {seed}"
