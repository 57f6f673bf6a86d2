"""A folder of an adapter is read as PEFT means it, or refused by name."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.model.adapter_folder import AdapterFolder, module_key
from runtime.model.config import LoadError
from tests.support.adapters import write_adapter

MAPS = [("model.layers.0.self_attn.q_proj", 6, 4), ("model.layers.1.mlp.down_proj", 4, 8)]
FIRST = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", MAPS, seed=0, rank=2, scale=3.0)


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | fields
    path.write_text(json.dumps(values), encoding="utf-8")


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: values.contiguous() for name, values in tensors.items()}, path)


def test_matrices_are_handed_out_with_their_scale(folder: Path) -> None:
    stored = load_file(folder / "adapter_model.safetensors")
    down, up = AdapterFolder(folder).matrices(MAPS[0][0], 6, 4)
    assert torch.equal(down, stored[f"{FIRST}.lora_A.weight"])
    assert torch.allclose(up, 3.0 * stored[f"{FIRST}.lora_B.weight"])


def test_the_scale_may_be_of_the_ranks_root_or_a_modules_own(folder: Path) -> None:
    stored = load_file(folder / "adapter_model.safetensors")[f"{FIRST}.lora_B.weight"]
    change_config(folder, use_rslora=True, lora_alpha=6)
    _, up = AdapterFolder(folder).matrices(MAPS[0][0], 6, 4)
    assert torch.allclose(up, 6 / math.sqrt(2) * stored)
    for pattern in ("q_proj", r".*\.q_proj", "model.layers.0.self_attn.q_proj"):
        change_config(folder, use_rslora=False, alpha_pattern={"k_proj": 1, pattern: 10})
        _, up = AdapterFolder(folder).matrices(MAPS[0][0], 6, 4)
        assert torch.allclose(up, 5 * stored), pattern


def test_a_folder_says_what_is_in_it(folder: Path) -> None:
    summary = AdapterFolder(folder).summary
    assert summary.rank == 2
    assert summary.numbers == 2 * (6 + 4 + 4 + 8)


def test_a_digest_is_of_numbers_and_scale(folder: Path, tmp_path: Path) -> None:
    same = write_adapter(tmp_path / "same", MAPS, seed=0, rank=2, scale=3.0)
    digest = AdapterFolder(folder).digest()
    assert digest == AdapterFolder(same).digest()
    change_config(same, lora_alpha=7)
    assert AdapterFolder(same).digest() != digest
    other = write_adapter(tmp_path / "other", MAPS, seed=1, rank=2, scale=3.0)
    assert AdapterFolder(other).digest() != digest


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.3.mlp.up_proj",
        "model.language_model.layers.3.mlp.up_proj",
        "language_model.model.layers.3.mlp.up_proj",
        "backbone.layers.3.mlp.up_proj",
        "layers.3.mlp.up_proj",
    ],
)
def test_a_module_is_known_however_the_model_is_wrapped(name: str) -> None:
    assert module_key(name) == "layers.3.mlp.up_proj"


@pytest.mark.parametrize("name", ["lm_head", "model.vision_tower.layers.0.q_proj", "model.norm"])
def test_what_is_in_no_layer_of_text_has_no_key(name: str) -> None:
    assert module_key(name) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"peft_type": "IA3"}, "field peft_type is 'IA3'"),
        ({"bias": "all"}, "field bias is 'all'"),
        ({"use_dora": True}, "field use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, "field modules_to_save"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "field target_parameters"),
        ({"init_lora_weights": "pissa"}, "path_initial_model_for_weight_conversion"),
        ({"fan_in_fan_out": True}, "field fan_in_fan_out"),
        ({"r": 0}, "field r is 0"),
        ({"lora_alpha": "8"}, "field lora_alpha is '8'"),
        ({"alpha_pattern": {"(q": 2}}, "field alpha_pattern"),
        ({"alpha_pattern": {"q": "x"}}, "field alpha_pattern.q"),
        ({"something_new": 3}, "field something_new is 3"),
    ],
)
def test_a_field_that_is_not_served_is_refused(
    folder: Path, fields: dict[str, Any], said: str
) -> None:
    change_config(folder, **fields)
    with pytest.raises(LoadError, match=r"adapter_config\.json") as refused:
        AdapterFolder(folder)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop(f"{FIRST}.lora_B.weight"), "one of lora_A and lora_B alone"),
        (lambda t: t.update({f"{FIRST}.lora_B.weight": torch.zeros(6, 3)}), "both are the rank"),
        (lambda t: t.update({"lora_x": torch.zeros(1)}), "no matrix of a LoRA adapter"),
        (
            lambda t: t.update({"base_model.model.lm_head.lora_A.weight": torch.zeros(2, 2)}),
            "outside the layers of text",
        ),
        (
            lambda t: t.update({f"{FIRST}.lora_B.weight": torch.zeros(6, 2, dtype=torch.int32)}),
            "no matrix of floats",
        ),
        (lambda t: t.clear(), "there is no tensor in it"),
    ],
)
def test_tensors_that_are_no_adapter_are_refused(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], object], said: str
) -> None:
    change_tensors(folder, change)
    with pytest.raises(LoadError, match=r"adapter_model\.safetensors") as refused:
        AdapterFolder(folder)
    assert said in str(refused.value)


def test_matrices_of_another_model_and_numbers_that_are_none_are_refused(folder: Path) -> None:
    with pytest.raises(LoadError, match="the adapter is of another model"):
        AdapterFolder(folder).matrices(MAPS[0][0], 8, 4)
    change_tensors(folder, lambda tensors: tensors[f"{FIRST}.lora_A.weight"].fill_(torch.inf))
    with pytest.raises(LoadError, match="not finite"):
        AdapterFolder(folder).matrices(MAPS[0][0], 6, 4)


def test_a_module_that_nobody_takes_is_named(folder: Path) -> None:
    adapter = AdapterFolder(folder)
    adapter.matrices(MAPS[0][0], 6, 4)
    with pytest.raises(LoadError, match=r"layers\.1\.mlp\.down_proj"):
        adapter.check_all_taken()
    adapter.matrices(MAPS[1][0], 4, 8)
    adapter.check_all_taken()


def test_files_that_are_not_there_are_named(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(LoadError, match="pickled weights"):
        AdapterFolder(folder)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(LoadError, match=r"adapter_config\.json"):
        AdapterFolder(folder)
