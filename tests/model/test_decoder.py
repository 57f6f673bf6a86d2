"""The decoder's own promises; its arithmetic is compared in ``test_weights`` and
``test_model_runner``."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.model.batch import SequenceInput
from runtime.model.presets import PRESETS, random_model_config
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.preset_kinds import EVERY_KIND

CPU = torch.device("cpu")


@pytest.mark.samples(16)
@pytest.mark.parametrize(
    ("dtype", "logit_dtype"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
@pytest.mark.parametrize("family", EVERY_KIND)
def test_every_dtype_runs_and_stays_near_float64(
    dtype: torch.dtype, logit_dtype: torch.dtype, family: str
) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 70, dtype=np.int32)
    step = SequenceInput(
        tokens=tokens, start=0, block_table=np.arange(5, dtype=np.int32), num_logits=70
    )

    def logits(kind: torch.dtype) -> torch.Tensor:
        model = load_model(f"random:{family}", dtype=kind, device=CPU)
        return ModelRunner(model, num_blocks=5, block_size=16).run([step])[:, :256]

    actual, exact = logits(dtype), logits(torch.float64)
    assert actual.dtype == logit_dtype
    limit = {torch.float32: 1e-4, torch.float64: 0}.get(dtype, 0.1)
    errors, norms = (actual - exact).norm(dim=1), exact.norm(dim=1)
    if limit == 0.1 and random_model_config(family).has_experts:
        # A router has no such bound: where two experts are equally likely the other one is taken,
        # which is so for few tokens.
        assert (errors / norms).median() <= limit
    else:
        assert errors.norm() <= limit * norms.norm()


def test_logits_are_capped_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """cap * tanh(x / cap), in the dtype of logits; what shapes random models comes behind it."""
    step = SequenceInput(
        tokens=np.arange(30, dtype=np.int32),
        start=0,
        block_table=np.arange(2, dtype=np.int32),
        num_logits=30,
    )

    def logits(cap: float | None) -> torch.Tensor:
        config = replace(random_model_config("qwen3-tiny"), logit_cap=cap, shaping=None)
        monkeypatch.setitem(PRESETS, "capped-tiny", config)
        model = load_model("random:capped-tiny", dtype=torch.float64, device=CPU)
        return ModelRunner(model, num_blocks=2, block_size=16).run([step]).clone()

    plain, capped = logits(None), logits(1.5)
    assert plain.abs().max() > 3
    assert torch.allclose(capped, 1.5 * (plain / 1.5).tanh(), rtol=1e-12, atol=0)
    assert capped.abs().max() < 1.5
    assert torch.equal(capped.argmax(-1), plain.argmax(-1))


def test_a_step_reads_every_weight_but_the_norms_and_an_untied_embedding() -> None:
    model = load_model("random:qwen3-tiny", dtype=torch.float32, device=CPU)
    config = model.config
    mixer, mlp = config.layers[0].mixer, config.layers[0].feed_forward
    per_layer = config.hidden_size * (mixer.query_size * 2 + mixer.kv_size * 2)
    per_layer += 3 * config.hidden_size * mlp.size
    head = config.vocab_size * config.hidden_size
    assert model.decoder.step_weight_bytes == 4 * (config.num_layers * per_layer + head)


@pytest.mark.parametrize(("bits", "bound"), [(8, 0.02), (4, 0.35)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", ["qwen3-tiny", "llama-tiny"])
def test_quantised_logits_stay_within_their_stated_bound(
    bits, bound: float, dtype: torch.dtype, family: str
) -> None:
    """As a share of the logits' norm, beyond what the dtype itself costs. Experts have no such
    bound: where two are equally likely, an error however small takes the other one."""
    tokens = np.random.default_rng(1).integers(0, 256, 200, dtype=np.int32)
    step = SequenceInput(
        tokens=tokens, start=0, block_table=np.arange(13, dtype=np.int32), num_logits=200
    )

    def logits(width) -> torch.Tensor:
        model = load_model(f"random:{family}", dtype=dtype, device=CPU, bits=width)
        return ModelRunner(model, num_blocks=13, block_size=16).run([step])[:, :256]

    plain, quantised = logits(16), logits(bits)
    error = float((quantised - plain).norm() / plain.norm())
    assert 0 < error < bound + (0.05 if dtype == torch.bfloat16 else 0)
