"""Hybrid families' logits beside those of ``transformers``, in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from runtime.model.batch import SequenceInput
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.family_shapes import SHAPES, VOCABULARY, Shape, disturbed, save

CPU = torch.device("cpu")
PROMPTS = (1, 63, 64, 65, 150, 700)
LIMIT = 1e-5
CLASSES = {"lfm2": "Lfm2", "lfm2_moe": "Lfm2Moe"}


def fields(family: str, shape: Shape) -> dict[str, Any]:
    attends = {1, shape.layers - 1}
    kinds = ["full_attention" if each in attends else "conv" for each in range(shape.layers)]
    own = {
        "layer_types": kinds,
        "rope_parameters": shape.rope,
        "conv_bias": shape.tied,
        "conv_L_cache": 3 + (shape.layers == 5),
    }
    if family == "lfm2":
        return own | {"block_auto_adjust_ff_dim": not shape.tied, "block_multiple_of": 8}
    return own | {
        "num_dense_layers": 1,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": not shape.tied,
        "use_expert_bias": shape.layers != 3,
    }


def random_model(family: str, shape: Shape, seed: int) -> transformers.PreTrainedModel:
    name = CLASSES[family]
    config = getattr(transformers, f"{name}Config")(**{**shape.fields, **fields(family, shape)})
    config._experts_implementation = "eager"
    config._attn_implementation = "eager"
    return disturbed(getattr(transformers, f"{name}ForCausalLM")(config).eval(), seed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", CLASSES)
def test_logits_of_a_hybrid_are_those_of_transformers(
    family: str,
    shape: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole prompts, and in two chunks of which the second begins where the first has left the
    state. Angles are in float32 as in ``transformers``."""
    monkeypatch.setattr("runtime.model.rotary.angle_dtype", lambda dtype: torch.float32)
    seed = request.config.getoption("--seed")
    model = random_model(family, SHAPES[shape], seed)
    save(model, tmp_path)
    model.double()
    ours = load_model(tmp_path, dtype=torch.float64, device=CPU)
    runner = ModelRunner(ours, num_blocks=45, block_size=16)
    runner.hold_states(slots=2, rings=2)
    assert runner.states is not None
    table = np.arange(45, dtype=np.int32)[::-1].copy()
    for length in PROMPTS:
        tokens = np.random.default_rng(seed).integers(0, VOCABULARY, length, dtype=np.int32)
        with torch.inference_mode():
            expected = model(torch.from_numpy(tokens).long()[None]).logits[0]
        for cut in {0, length // 2}:
            runner.states.begin(1, source=None, position=0)
            found = [
                runner.run(
                    [
                        SequenceInput(
                            tokens=tokens[start:end],
                            start=start,
                            block_table=table,
                            num_logits=end - start,
                            state_slot=1,
                        )
                    ]
                ).clone()
                for start, end in ((0, cut), (cut, length))
                if end > start
            ]
            runner.states.end(1, position=None)
            difference = (torch.cat(found) - expected).norm() / expected.norm()
            assert difference <= LIMIT, f"{length} tokens, cut at {cut}, seed {seed}"
