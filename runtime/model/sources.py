"""The folder or file that the name of a model stands for, as far as small files tell: which
decoder, which tokenizer.

A name is a folder in Hugging Face layout, a GGUF file, ``default``, ``random:NAME``, or
``hub:ORG/NAME``, a model that has been fetched. No weight is looked at, so that whoever starts a
server can ask before a model is loaded. No torch here.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from runtime.model.config import LoadError, ModelConfig
from runtime.model.gguf_description import read_gguf_config
from runtime.model.gguf_header import GgufHeader, read_gguf_header
from runtime.model.gguf_tokenizer import tokenizer_folder_of
from runtime.model.hf_config import read_model_config
from runtime.model.hub_models import PREFIX as PREFIX_OF_HUB
from runtime.model.hub_models import hub_folder, is_hub_name
from runtime.model.presets import PREFIX, random_model_config
from runtime.model.tiktoken_vocabulary import has_vocabulary, tiktoken_folder_of

WEIGHT_FILES = ("model.safetensors.index.json", "model.safetensors")
"""Files of weights in a folder: one of them."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""Names as models are called on Hugging Face's hub."""
ASSETS = Path(__file__).parent.parent / "assets"
BYTE_TOKENIZER = ASSETS / "byte_tokenizer"
DEFAULT_MODEL = ASSETS / "default_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model that has not been loaded."""

    config: ModelConfig
    folder: Path | None
    """Where its weights are; None: they are drawn from a seed."""
    tokenizer_folder: Path
    """Holds ``tokenizer.json``."""
    gguf: GgufHeader | None = None
    """The path of the file that the model is in, if it is one."""

    @property
    def model_type(self) -> str:
        """Family; the chat format is chosen by it."""
        return self.config.model_type

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: rows of the embedding."""
        return self.config.vocab_size


def folder_of(name: str) -> Path | None:
    """The folder that a name means, which need not be there; None: random weights.

    Raises:
        LoadError: it is a name of a hub, and the model has not been fetched.
    """
    if is_hub_name(name):
        return hub_folder(name)
    if name.startswith(PREFIX):
        return None
    return DEFAULT_MODEL if name == "default" else Path(os.path.expanduser(name))


def find_source(name: str, *, max_context_tokens: int | None = None) -> ModelSource:
    """Read what a name stands for.

    Args:
        name: of the model.
        max_context_tokens: the longest context that is to be served, which positions of some models
            follow; None: the model's own.

    Raises:
        LoadError: there is no such model, or it is none that can be served; the message names
            file, field and remedy.
    """
    folder = folder_of(name)
    if folder is None:
        try:
            config = random_model_config(name.removeprefix(PREFIX))
        except LoadError as error:
            raise LoadError(f"{name}: {error}") from error
        return ModelSource(config=config, folder=None, tokenizer_folder=BYTE_TOKENIZER)
    gguf = gguf_file_in(folder)
    if gguf is None and folder.suffix == ".gguf" and not folder.is_dir():
        raise LoadError(f"{folder}: no such file")
    if gguf is None and not folder.is_dir():
        fault = (
            f"{folder}: no such folder; models are folders, default, random:NAME or hub:ORG/NAME"
        )
        if _HUB_NAME.fullmatch(name):
            fault += f"; --model {PREFIX_OF_HUB}{name} fetches the model of that name"
        raise LoadError(fault)
    if gguf is not None:
        return _gguf_source(gguf, max_context_tokens)
    config = read_model_config(folder, max_context_tokens=max_context_tokens)
    if has_vocabulary(folder):
        return ModelSource(
            config=config, folder=folder, tokenizer_folder=tiktoken_folder_of(folder)
        )
    if not (folder / "tokenizer.json").exists():
        raise LoadError(f"{folder / 'tokenizer.json'}: missing; a fast tokenizer is needed")
    return ModelSource(config=config, folder=folder, tokenizer_folder=folder)


def gguf_file_in(path: Path) -> Path | None:
    """The GGUF file that a path is, or that a folder has instead of a model in other files."""
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not path.is_dir() or any((path / name).exists() for name in WEIGHT_FILES):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise LoadError(f"{path}: {len(found)} GGUF files are there: name one of them")
    return found[0] if found else None


def _gguf_source(path: Path, max_context_tokens: int | None) -> ModelSource:
    header = read_gguf_header(path)
    config = read_gguf_config(header, max_context_tokens)
    return ModelSource(
        config=config,
        folder=path.parent,
        tokenizer_folder=tokenizer_folder_of(header, config.model_type),
        gguf=header,
    )


def check_context(name: str, config: ModelConfig, asked: int | None) -> None:
    """``asked``: the longest transcript that is to be served; None: what the model was made for.

    Raises:
        LoadError: it is more than that.
    """
    most = config.max_context_tokens
    if asked is not None and asked > most:
        raise LoadError(
            f"max_context_tokens is {asked}, and the model {name} has a context of {most} tokens: "
            f"give {most} or less, or leave it out; what makes a model's context longer is "
            "rope_scaling in its config.json"
        )
