"""Quantised folders whose description or whose tensors are spoiled: read, or refused in one line.

Every published format's small folder, of which one thing or two are made wrong: a field of
``quantization_config`` in the ways of ``test_config_fuzz``, a tensor left out, of another shape or
dtype, or with scales that are no numbers. Weights are taken, nothing is computed.
``KEEPWARM_CONFIG_CASES`` says how many, ``KEEPWARM_CONFIG_SEED`` which.
"""

import contextlib
import copy
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from runtime.model.checkpoint import Checkpoint
from runtime.model.config import LoadError
from runtime.model.family_weights import FamilyWeights
from runtime.model.hf_config import FAMILIES, read_model_config
from tests.campaigns.test_config_fuzz import STRANGE, spoil
from tests.support.quantised_folders import FORMATS, gpt_oss_folder, write_folder

CASES = int(os.environ.get("KEEPWARM_CONFIG_CASES", "10000")) // 10
SEED = int(os.environ.get("KEEPWARM_CONFIG_SEED", "0"))
FOLDERS = [*FORMATS, "gpt-oss"]
NAMES = ["re:(a+)+$", "re:.*", "lm_head", "*", "re:[", "", "model.layers.0.mlp.up_proj"]


def take_all(folder: Path) -> None:
    """What a decoder asks for."""
    config = read_model_config(folder)
    stored = Checkpoint(folder, torch.bfloat16, torch.device("cpu"))
    with contextlib.closing(stored):
        weights = FamilyWeights(stored, FAMILIES[config.model_type].names, config)
        hidden, mixer = config.hidden_size, config.layers[0].mixer
        sizes = {"q": mixer.query_size, "k": mixer.kv_size, "v": mixer.kv_size}
        for index, layer in enumerate(config.layers):
            stem = f"model.layers.{index}"
            for name, size in sizes.items():
                weights.matrix(f"{stem}.self_attn.{name}_proj.weight", (size, hidden))
            mlp = getattr(layer.feed_forward, "each", layer.feed_forward)
            inner = ".experts.1" if hasattr(layer.feed_forward, "each") else ""
            weights.matrix(f"{stem}.mlp{inner}.up_proj.weight", (mlp.size, hidden))
            weights.matrix(f"{stem}.mlp{inner}.down_proj.weight", (hidden, mlp.size))
        weights.matrix("lm_head.weight", (config.vocab_size, hidden))


def spoil_tensor(draw: random.Random, tensors: dict[str, Tensor]) -> None:
    name = draw.choice([name for name in tensors if "_proj" in name])
    tensor = tensors[name]
    ways = ["away", "rows", "columns", "dtype", "bits", "renamed", "scalar"]
    way = draw.choice(ways)
    if way == "away":
        del tensors[name]
    elif way == "rows" and tensor.ndim:
        tensors[name] = torch.cat((tensor.view(torch.uint8), tensor.view(torch.uint8))).clone()
        tensors[name] = tensors[name].view(tensor.dtype)
    elif way == "columns" and tensor.ndim:
        tensors[name] = tensor[..., : max(1, tensor.shape[-1] // 2)].contiguous()
    elif way == "dtype":
        other = draw.choice([torch.int64, torch.float32, torch.uint8, torch.int32, torch.bfloat16])
        tensors[name] = tensor.float().clamp(0, 200).to(other)
    elif way == "bits":
        raw = tensor.clone().reshape(-1).view(torch.uint8)
        value = draw.choice([0, 0xFF, 0x7F, 0x80])
        raw[: draw.choice([2, 4, raw.numel()])] = value
        tensors[name] = raw.view(tensor.dtype).view(tensor.shape)
    elif way == "renamed":
        tensors[name.replace("layers.1", "layers.7")] = tensors.pop(name)
    else:
        tensors[name] = tensor.reshape(-1)[:1].clone()


def spoil_settings(draw: random.Random, settings: dict[str, Any]) -> None:
    listed = [name for name, value in settings.items() if isinstance(value, list)]
    if listed and draw.random() < 0.4:
        name = draw.choice(listed)
        settings[name] = draw.sample(NAMES, draw.randint(0, 3))
    else:
        spoil(draw, settings)


@pytest.mark.parametrize("form", FOLDERS)
def test_a_spoiled_folder_is_read_or_refused_in_one_line(form: str, tmp_path: Path) -> None:
    draw = random.Random(f"{SEED}/{form}")
    if form == "gpt-oss":
        gpt_oss_folder(tmp_path, seed=0)
    else:
        write_folder(tmp_path, FORMATS[form], seed=0)
    take_all(tmp_path)
    path, file = tmp_path / "config.json", tmp_path / "model.safetensors"
    whole, tensors = json.loads(path.read_text()), load_file(file)
    refused, cases = 0, -(-CASES // len(FOLDERS))
    for case in range(cases):
        config, kept = copy.deepcopy(whole), dict(tensors)
        which = draw.random()
        if which < 0.6:
            spoil_settings(draw, config["quantization_config"])
        elif which < 0.65:
            config["quantization_config"] = copy.deepcopy(draw.choice(STRANGE))
        if which > 0.55:
            spoil_tensor(draw, kept)
        path.write_text(json.dumps(config))
        save_file(kept, file)
        began = time.process_time()
        try:
            take_all(tmp_path)
        except LoadError as error:
            refused += 1
            told = str(error)
            assert told.startswith(str(tmp_path)), (case, told)
            assert len(told.splitlines()) == 1, (case, told)
            assert len(told) < 700 + len(str(tmp_path)), (case, told)
        assert time.process_time() - began < 5, case
    assert refused > cases // 4
