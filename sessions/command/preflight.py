"""What can be said against a model before torch is loaded: a folder that is missing or unfit.

Reads the small files of the folder alone; weights are looked at where they are loaded.
"""

import os
from pathlib import Path

from runtime.model.config import LoadError
from runtime.model.hf_config import read_model_config
from runtime.model.presets import PREFIX, random_model_config

_WEIGHTS = ("model.safetensors.index.json", "model.safetensors")


def fault_of_model(model: str) -> str | None:
    """Why ``keepwarm serve --model MODEL`` cannot work, as far as is seen at once; None if
    nothing is."""
    try:
        if model == "default":
            return None
        if model.startswith(PREFIX):
            random_model_config(model.removeprefix(PREFIX))
            return None
        return _fault_of_folder(Path(os.path.expanduser(model)))
    except LoadError as error:
        return str(error)


def _fault_of_folder(folder: Path) -> str | None:
    if not folder.is_dir():
        return f"{folder}: no such folder; models are folders, default or random:NAME"
    config = folder / "config.json"
    if config.is_file() or not config.exists():  # what else it is the loader may wait for
        read_model_config(folder)
    if not (folder / "tokenizer.json").exists():
        return f"{folder / 'tokenizer.json'}: missing; a fast tokenizer is needed"
    if not any((folder / name).exists() for name in _WEIGHTS):
        return f"{folder}: no weights; there has to be {' or '.join(_WEIGHTS)}"
    return None
