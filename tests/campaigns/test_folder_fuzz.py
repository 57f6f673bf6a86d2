"""Quantised folders whose description or whose tensors are spoiled: read, or refused in one line.

Every published format's small folder, of which one thing or two are made wrong: a field of
``quantization_config`` in the ways of ``test_config_fuzz``, a tensor left out, of another shape or
dtype, or with scales that are no numbers. Each module is a shard of its own, so that a case writes
little. Weights are taken, the spoiled ones among them, and nothing is computed.
``KEEPWARM_CONFIG_CASES`` says how many, ``KEEPWARM_CONFIG_SEED`` which.
"""

import contextlib
import copy
import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from runtime.model.checkpoint import Checkpoint
from runtime.model.config import Attention, LoadError
from runtime.model.family_weights import FamilyWeights
from runtime.model.hf_config import FAMILIES, read_model_config
from tests.campaigns.test_config_fuzz import STRANGE, spoil
from tests.support.quantised_folders import FORMATS, gpt_oss_folder, write_folder

CASES = int(os.environ.get("KEEPWARM_CONFIG_CASES", "10000")) // 10
SEED = int(os.environ.get("KEEPWARM_CONFIG_SEED", "0"))
FOLDERS = [*FORMATS, "gpt-oss"]
NAMES = ["re:(a+)+$", "re:.*", "lm_head", "*", "re:[", "", "model.layers.0.mlp.up_proj"]


TAKEN = 3
"""Modules of a case."""


def take(folder: Path, draw: random.Random, wanted: str | None = None) -> None:
    """What a decoder asks for of ``wanted``, a module of the checkpoint, and of some others."""
    config = read_model_config(folder)
    stored = Checkpoint(folder, torch.bfloat16, torch.device("cpu"))
    with contextlib.closing(stored):
        weights = FamilyWeights(stored, FAMILIES[config.model_type].names, config)
        hidden, mixer = config.hidden_size, config.layers[0].mixer
        assert isinstance(mixer, Attention)
        sizes = {"q": mixer.query_size, "k": mixer.kv_size, "v": mixer.kv_size}
        shapes = {"lm_head": (config.vocab_size, hidden)}
        for index, layer in enumerate(config.layers):
            stem = f"model.layers.{index}"
            for name, size in sizes.items():
                shapes[f"{stem}.self_attn.{name}_proj"] = size, hidden
            mlp = getattr(layer.feed_forward, "each", layer.feed_forward)
            inner = ".experts.1" if hasattr(layer.feed_forward, "each") else ""
            shapes[f"{stem}.mlp{inner}.up_proj"] = mlp.size, hidden
            shapes[f"{stem}.mlp{inner}.down_proj"] = hidden, mlp.size
        names = [wanted] if wanted in shapes else []
        stack = None if wanted is None else wanted.rpartition(".")[2]
        if stack in ("gate_up_proj", "down_proj") and not names and wanted is not None:
            part = "up_proj" if stack == "gate_up_proj" else stack
            names = [name for name in shapes if name.endswith(f".1.{part}")]
        for name in [*names, *draw.sample(sorted(shapes), TAKEN)]:
            weights.matrix(f"{name}.weight", shapes[name])


class Shards:
    """A folder whose modules are shards of their own."""

    def __init__(self, folder: Path) -> None:
        whole = folder / "model.safetensors"
        self.modules: dict[str, dict[str, Tensor]] = {}
        for name, tensor in load_file(whole).items():
            self.modules.setdefault(module_of(name), {})[name] = tensor
        whole.unlink()
        self._folder = folder
        self._files = {name: f"{place}.safetensors" for place, name in enumerate(self.modules)}
        self._index = {
            name: self._files[module] for module, kept in self.modules.items() for name in kept
        }
        for module in self.modules:
            save_file(self.modules[module], folder / self._files[module])
        self._write_index(self._index)

    def put(self, module: str, tensors: dict[str, Tensor], *, told: bool) -> None:
        """Keep other tensors of a module; ``told``: so that the index knows."""
        save_file(tensors, self._folder / self._files[module])
        if told and tensors.keys() != self.modules[module].keys():
            others = {name: file for name, file in self._index.items() if module_of(name) != module}
            self._write_index(others | dict.fromkeys(tensors, self._files[module]))

    def put_back(self, module: str) -> None:
        save_file(self.modules[module], self._folder / self._files[module])
        self._write_index(self._index)

    def _write_index(self, names: dict[str, str]) -> None:
        path = self._folder / "model.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": names}))


def module_of(name: str) -> str:
    """That a tensor belongs to; of a stack of experts all that is kept of it."""
    stacked = re.match(r"(.+\.experts\.[a-z_]+_proj)", name)
    return stacked[1].removesuffix("_bias") if stacked else name.rpartition(".")[0]


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
    shards, path = Shards(tmp_path), tmp_path / "config.json"
    take(tmp_path, draw)
    whole = json.loads(path.read_text())
    spoilable = [name for name in shards.modules if "_proj" in name]
    refused, cases = 0, -(-CASES // len(FOLDERS))
    for case in range(cases):
        config, which, module = copy.deepcopy(whole), draw.random(), None
        if which < 0.6:
            spoil_settings(draw, config["quantization_config"])
        elif which < 0.65:
            config["quantization_config"] = copy.deepcopy(draw.choice(STRANGE))
        if which > 0.55:
            module = draw.choice(spoilable)
            kept = dict(shards.modules[module])
            spoil_tensor(draw, kept)
            shards.put(module, kept, told=draw.random() < 0.7)
        path.write_text(json.dumps(config))
        began = time.process_time()
        try:
            take(tmp_path, draw, module)
        except LoadError as error:
            refused += 1
            told = str(error)
            assert told.startswith(str(tmp_path)), (case, told)
            assert len(told.splitlines()) == 1, (case, told)
            assert len(told) < 700 + len(str(tmp_path)), (case, told)
        assert time.process_time() - began < 5, case
        if module is not None:
            shards.put_back(module)
    assert refused > cases // 4
