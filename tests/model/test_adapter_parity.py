"""Every family's logits with an adapter of PEFT's beside those of PEFT, in float64."""

from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers

from runtime.config import AdapterSource
from runtime.model.batch import SequenceInput
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.model.test_family_parity import CPU, LIMIT, reference_in_float64, scores_in_float64
from tests.model.test_hybrid_parity import CLASSES, random_model
from tests.support.family_shapes import FAMILIES, SHAPES, VOCABULARY, make, save

__all__ = ["reference_in_float64"]

LENGTH = 150
_WITHOUT = ("experts.", "indexer", "kv_b_proj", "router", ".compressor.", ".forget_gate.")
_ENDS_WITHOUT = (".gate", "shared_expert_gate", "o_a_proj", ".b_proj")
_CONVERTED = ("num_experts", "n_routed_experts", "num_local_experts")
"""PEFT makes experts' targets of the names of dense MLPs in models with these."""


def adapted_modules(model: transformers.PreTrainedModel) -> list[str]:
    """The linear maps that can have an adapter here and in PEFT."""
    converted = any(hasattr(model.config, name) for name in _CONVERTED)
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and ".layers." in name
        and not any(part in name for part in _WITHOUT)
        and not name.endswith(_ENDS_WITHOUT)
        and not (converted and ".mlp." in name and "shared" not in name)
        and not (converted and name.endswith("self_attn.gate_proj"))
        and not (model.config.model_type == "nemotron_h" and name.endswith("out_proj"))
        and not (model.config.model_type == "qwen3_next" and ".mlp." in name)
    ]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.samples(6)
def test_logits_are_those_of_peft(
    family: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.model.rotary.angle_dtype", lambda dtype: torch.float32)
    seed = request.config.getoption("--seed")
    model = make(family, SHAPES["uneven"], seed=seed)
    save(model, tmp_path / "model")
    config = peft.LoraConfig(r=3, lora_alpha=7, target_modules=adapted_modules(model))
    adapted = peft.get_peft_model(model, config, autocast_adapter_dtype=False).double().eval()
    torch.manual_seed(seed)
    for name, values in adapted.named_parameters():
        if "lora_" in name:
            values.data.normal_(0, 0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    scores_in_float64(model)
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, LENGTH, dtype=np.int32)
    ids = torch.from_numpy(tokens).long()[None]
    with torch.inference_mode():
        expected = adapted(ids).logits[0]
        with adapted.disable_adapter():
            plain = adapted(ids).logits[0]
    source = AdapterSource(name="a", folder=str(tmp_path / "adapter"))
    loaded = load_model(
        tmp_path / "model",
        dtype=torch.float64,
        device=CPU,
        adapters=[source],
    )
    runner = ModelRunner(loaded, num_blocks=40, block_size=16)
    table = np.arange(40, dtype=np.int32)[::-1].copy()

    def found(adapter: int) -> torch.Tensor:
        entry = SequenceInput(
            tokens=tokens, start=0, block_table=table, num_logits=LENGTH, adapter=adapter
        )
        return runner.run([entry])

    assert (plain - expected).norm() > 0.1 * expected.norm()
    assert (found(0) - expected).norm() <= LIMIT * expected.norm(), f"seed {seed}"
    assert (found(-1) - plain).norm() <= LIMIT * plain.norm(), f"seed {seed}"


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*pattern keys did not match:RuntimeWarning")
@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.samples(4)
def test_logits_of_a_hybrid_are_those_of_its_merged_folder(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """PEFT merges the adapter into the weights; that the folder's logits are those of
    ``transformers`` is ``test_hybrid_parity``'s."""
    seed = request.config.getoption("--seed")
    model = random_model(family, SHAPES["uneven"], seed)
    save(model, tmp_path / "model")
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=3, lora_alpha=7, target_modules=adapted_modules(model))
    adapted = peft.get_peft_model(model, config)
    for name, values in adapted.named_parameters():
        if "lora_" in name:
            values.data.normal_(0, 0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    save(adapted.merge_and_unload(), tmp_path / "merged")
    source = AdapterSource(name="a", folder=str(tmp_path / "adapter"))
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, LENGTH, dtype=np.int32)
    table = np.arange(40, dtype=np.int32)

    def found(folder: str, adapters: list[AdapterSource], adapter: int) -> torch.Tensor:
        loaded = load_model(tmp_path / folder, dtype=torch.float64, device=CPU, adapters=adapters)
        runner = ModelRunner(loaded, num_blocks=40, block_size=16)
        entry = SequenceInput(
            tokens=tokens, start=0, block_table=table, num_logits=LENGTH, adapter=adapter
        )
        return runner.run([entry]).clone()

    merged = found("merged", [], -1)
    assert (found("model", [source], -1) - merged).norm() > 0.1 * merged.norm()
    assert (found("model", [source], 0) - merged).norm() <= LIMIT * merged.norm(), f"seed {seed}"
