"""Every published format gives the numbers that a library reads in it, bit for bit, and a model of
them is the model of these numbers."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.codes import Codes, widen_codes
from runtime.model import code_layouts
from runtime.model.batch import SequenceInput
from runtime.model.checkpoint import Checkpoint
from runtime.model.config import LoadError
from runtime.model.family_weights import FamilyWeights
from runtime.model.hf_config import FAMILIES, read_model_config
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.quantised_folders import (
    FORMATS,
    KEPT,
    edit_config,
    gpt_oss_folder,
    widened_folder,
    write_folder,
)

CPU = torch.device("cpu")


@contextlib.contextmanager
def weights_of(folder: Path) -> Iterator[FamilyWeights]:
    config = read_model_config(folder)
    stored = Checkpoint(folder, torch.float32, CPU)
    with contextlib.closing(stored):
        yield FamilyWeights(stored, FAMILIES[config.model_type].names, config)


def widened(matrix: Codes | Tensor) -> Tensor:
    return matrix if isinstance(matrix, Tensor) else widen_codes(matrix, torch.float32)


def differing(folder: Path, numbers: dict[str, Tensor]) -> list[str]:
    """Modules of which not every bit is that of the library's numbers."""
    with weights_of(folder) as weights:
        return [
            module
            for module, exact in numbers.items()
            if not torch.equal(
                widened(weights.matrix(f"{module}.weight", tuple(exact.shape))).view(torch.int32),
                exact.view(torch.int32),
            )
        ]


def logits(folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    model = load_model(folder, dtype=dtype, device=CPU)
    runner = ModelRunner(model, num_blocks=16, block_size=16)
    tokens = np.random.default_rng(0).integers(0, 256, 60, dtype=np.int32)
    table = np.arange(4, dtype=np.int32)
    return runner.run([SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=60)])


@pytest.mark.samples(6)
@pytest.mark.parametrize("form", FORMATS)
def test_the_numbers_are_those_that_a_library_reads(form: str, tmp_path: Path) -> None:
    numbers = write_folder(tmp_path, FORMATS[form], seed=1)
    assert len(numbers) == 13
    assert differing(tmp_path, numbers) == []


@pytest.mark.samples(3)
@pytest.mark.parametrize("form", FORMATS)
def test_a_model_computes_with_these_numbers(form: str, tmp_path: Path) -> None:
    numbers = write_folder(tmp_path / "kept", FORMATS[form], seed=2)
    plain = logits(widened_folder(tmp_path / "kept", numbers, tmp_path / "wide"))
    assert torch.equal(logits(tmp_path / "kept"), plain)
    narrow = logits(tmp_path / "kept", torch.bfloat16)
    assert float((narrow - plain).norm() / plain.norm()) < 0.03


def test_experts_in_mxfp4_are_what_transformers_reads(tmp_path: Path) -> None:
    numbers = gpt_oss_folder(tmp_path, seed=3)
    with weights_of(tmp_path) as weights:
        for layer in range(2):
            stem = f"model.layers.{layer}.mlp.experts"
            up, down = numbers[f"{stem}.gate_up_proj"], numbers[f"{stem}.down_proj"]
            for expert in range(4):
                for which, exact in (
                    ("gate_proj", up[expert, :, 0::2].T),
                    ("up_proj", up[expert, :, 1::2].T),
                    ("down_proj", down[expert].T),
                ):
                    name = f"{stem}.{expert}.{which}.weight"
                    assert torch.equal(widened(weights.matrix(name, tuple(exact.shape))), exact)
    assert logits(tmp_path).isfinite().all()


def test_a_module_of_another_form_beside_it_is_multiplied_for_itself(tmp_path: Path) -> None:
    """Keys are kept in 16 bits, queries and values are not: three matrices of one input."""
    kept = (*KEPT, "model.layers.0.self_attn.k_proj")
    numbers = write_folder(tmp_path / "kept", FORMATS["packed 4 zeros"], seed=4, kept=kept)
    plain = logits(widened_folder(tmp_path / "kept", numbers, tmp_path / "wide"))
    assert torch.allclose(logits(tmp_path / "kept"), plain, atol=1e-5)


MUTANTS = {
    "nibbles in the other order": ("_integers", "packed 4 group 32"),
    "nibbles of e2m1 in the other order": ("mxfp4_codes", "mxfp4 packed"),
    "nibbles of nvfp4 in the other order": ("nvfp4_weight", "nvfp4"),
    "scale of the neighbouring block": ("e4m3_codes", "fp8 blocks"),
    "scale of the neighbouring group": ("_integers scale", "packed 4 group 32"),
    "order of awq": ("_AWQ_ORDER", "awq 128"),
    "zero points of gptq as they lie": ("gptq_codes", "gptq 4"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_reader_that_is_wrong_is_found(
    mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, form = MUTANTS[mutant]
    numbers = write_folder(tmp_path, FORMATS[form], seed=5)
    name = place.split()[0]
    right = getattr(code_layouts, name)

    def swapped(first: Tensor, *rest, **named):
        return right(first >> 4 | first << 4, *rest, **named)

    def neighbour(first: Tensor, scales: Tensor, *rest, **named):
        return right(first, scales.roll(1, -1), *rest, **named)

    def second_version(*given, **named):
        return right(*given, **{**named, "first_version": False})

    wrong = {"e4m3_codes": neighbour, "_integers scale": neighbour, "gptq_codes": second_version}
    value = (0, 2, 4, 6, 1, 3, 5, 7) if name == "_AWQ_ORDER" else wrong.get(place, swapped)
    monkeypatch.setattr(code_layouts, name, value)
    assert len(differing(tmp_path, numbers)) == len(numbers)


def settings_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())["quantization_config"]


@pytest.mark.parametrize("form", ["fp8 blocks", "packed 4 group 32", "nvfp4"])
def test_a_module_that_is_not_listed_as_it_is_kept_is_refused(form: str, tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS[form], seed=6)
    settings, field = settings_of(tmp_path), FORMATS[form].excluded_field
    edit_config(tmp_path, {**settings, field: []})
    with pytest.raises(LoadError, match=rf"mlp.down_proj.*quantization_config.{field}$"):
        logits(tmp_path)
    edit_config(tmp_path, {**settings, field: [*KEPT, "model.layers.0.mlp.up_proj"]})
    with pytest.raises(LoadError, match=r"mlp.up_proj.*contradicts config.json"):
        logits(tmp_path)


def spoiled(folder: Path, name: str, value: float) -> None:
    """One number of a tensor is another."""
    tensors = load_file(folder / "model.safetensors")
    tensor = tensors[name].clone()
    tensor.view(-1)[0] = value
    save_file({**tensors, name: tensor}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("form", "part", "value", "told"),
    [
        ("fp8 blocks", "weight_scale_inv", 0.0, "has a scale of 0"),
        ("fp8 blocks", "weight_scale_inv", torch.nan, "has a scale that is not a number"),
        ("packed 4 group 32", "weight_scale", torch.inf, "has a scale that is not a number"),
        ("packed 8 zeros", "weight_scale", 0.0, "has a scale of 0"),
        ("gptq 4", "scales", torch.nan, "has a scale that is not a number"),
        ("awq 128", "scales", 0.0, "has a scale of 0"),
        ("mxfp4 packed", "weight_scale", 255, "has a scale of 255"),
        ("nvfp4", "weight_global_scale", 0.0, "has a scale of 0"),
        ("gptq 4", "g_idx", 7, "desc_act"),
        ("packed 4 group 64", "weight_shape", 9, "config.json asks for"),
    ],
)
def test_damaged_numbers_are_told_by_file_and_tensor(
    form: str, part: str, value: float, told: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, FORMATS[form], seed=7)
    name = f"model.layers.0.mlp.up_proj.{part}"
    spoiled(tmp_path, name, value)
    with pytest.raises(LoadError) as caught:
        logits(tmp_path)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'model.safetensors'}: tensor {name!r} ")
    assert told in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("order", ["in order", "not said", "of their own"])
def test_inputs_in_an_order_of_their_own_are_told_whatever_the_settings_say(
    order: str, tmp_path: Path
) -> None:
    """A compressed-tensors folder of ``actorder: group``, whose settings say nothing of it."""
    numbers = write_folder(tmp_path, FORMATS["packed 4 group 32"], seed=7)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight_g_idx"
    inputs = numbers[name.removesuffix(".weight_g_idx")].shape[1]
    groups = (torch.arange(inputs) // 32).int()
    given = {"in order": groups, "not said": torch.full_like(groups, -1)}
    tensors[name] = given.get(order, groups.flip(0).contiguous())
    save_file(tensors, tmp_path / "model.safetensors")
    if order == "of their own":
        with pytest.raises(LoadError, match=rf"tensor '{name}' has inputs in an order"):
            logits(tmp_path)
    else:
        assert differing(tmp_path, numbers) == []


@pytest.mark.parametrize(
    ("form", "changes", "told"),
    [
        ("awq 128", {"group_size": 64}, "qzeros' has shape|scales' has shape"),
        ("gptq 4", {"bits": 8}, "qweight' has shape"),
        ("fp8 blocks", {"weight_block_size": [128, 128]}, "weight_scale_inv' has shape"),
        ("fp8 tensor", {"weight_block_size": [32, 64]}, "weight_scale_inv' has shape"),
        ("awq 128", {"zero_point": False}, "zero_point is false"),
    ],
)
def test_a_description_of_other_tensors_is_told(
    form: str, changes: dict, told: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, FORMATS[form], seed=8)
    edit_config(tmp_path, {**settings_of(tmp_path), **changes})
    with pytest.raises(LoadError, match=told):
        logits(tmp_path)


def test_groups_that_do_not_divide_the_inputs_are_told(tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS["packed 4 group 128"], seed=9)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "hidden_size": 160, "head_dim": 32}))
    with pytest.raises(LoadError, match=r"groups of 128, which do not divide the 160 inputs"):
        with weights_of(tmp_path) as weights:
            weights.matrix("model.layers.0.mlp.up_proj.weight", (256, 160))
