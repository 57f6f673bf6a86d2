"""A LoRA adapter's folder in PEFT's layout, checked before a number of it is used.

``adapter_config.json`` says how large its part is, ``adapter_model.safetensors`` has two matrices
for each linear map that it changes (PEFT 0.21, https://huggingface.co/docs/peft/package_reference/lora).
Which maps there are the model knows: what it does not take is found by name in the end. Nothing
else in the folder is read: no pickled weights, no code.

Always true: an ``AdapterFolder`` that exists has a pair of matrices for each of its modules, whose
ranks agree.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from runtime.model.config import LoadError
from runtime.model.config_fields import Fields, read_json_object
from runtime.model.name_patterns import NamePattern, UnknownSyntax, expression
from runtime.model.safetensors_file import SafetensorsFile

CONFIG_NAME: Final = "adapter_config.json"
WEIGHTS_NAME: Final = "adapter_model.safetensors"
_MOST_RANK: Final = 4096
_WRAPPED: Final = "base_model.model."
_TENSOR = re.compile(r"(.+)\.lora_([AB])\.weight")
_HEADS: Final = (
    "model.language_model.",
    "language_model.model.",
    "model.text_model.",
    "backbone.",
    "model.",
    "",
)
"""Where layers of text are in a checkpoint or in a class of ``transformers``."""
_DIGEST_BYTES = 8
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_STARTS: Final = (True, False, "gaussian", "orthogonal", "eva")
"""``init_lora_weights`` that leave the model's own weights as they are."""
_WITHOUT_EFFECT: Final = frozenset(
    {
        "task_type",
        "auto_mapping",
        "peft_version",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "target_modules",
        "exclude_modules",
        "lora_dropout",
        "layers_to_transform",
        "layers_pattern",
        "rank_pattern",
        "megatron_core",
        "loftq_config",
        "eva_config",
        "qalora_group_size",
        "runtime_config",
        "parent_library",
        "ensure_weight_tying",
    }
)
"""Fields that say how it was trained, or what the tensors tell as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSummary:
    """An adapter as its header tells it."""

    rank: int
    """The largest of its modules' ranks."""
    numbers: int
    """Numbers in all its matrices."""


def module_key(name: str) -> str | None:
    """A module's name from ``layers`` on, however the model around it is wrapped; None: it is in no
    layer of text."""
    for head in _HEADS:
        rest = name.removeprefix(head)
        if name.startswith(head) and rest.startswith("layers."):
            return rest
    return None


class AdapterFolder:
    """An adapter that has not been taken into memory. Both files are checked on opening."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            LoadError: a file is missing or damaged, or says something that is not known.
        """
        self.folder = folder
        config = folder / CONFIG_NAME
        self._fields = Fields(config, read_json_object(config))
        self._scale = _Scale(self._fields)
        _check_fields(self._fields)
        weights = folder / WEIGHTS_NAME
        if not weights.exists() and any(folder.glob("*.bin")):
            raise LoadError(f"{weights}: not there; pickled weights (*.bin) are not read")
        self._file = SafetensorsFile(weights)
        self._full: dict[str, str] = {}
        """Modules as the file names them, by key."""
        self._pairs = self._paired()
        self._taken: set[str] = set()

    def __contains__(self, module: str) -> bool:
        return module_key(module) in self._pairs

    def _paired(self) -> dict[str, tuple[str, str]]:
        """Names of both matrices by the module's key."""
        found: dict[str, dict[str, str]] = {}
        for name in self._file.names():
            shown = f"{self._file.path}: tensor {name[:200]!r}"
            match = _TENSOR.fullmatch(name.removeprefix(_WRAPPED))
            if match is None:
                raise LoadError(f"{shown} is no matrix of a LoRA adapter: nothing is known of it")
            key = module_key(match[1])
            if key is None:
                raise LoadError(
                    f"{shown} is of a module outside the layers of text: linear maps in layers "
                    "alone can have an adapter"
                )
            pair = found.setdefault(key, {})
            self._full[key] = match[1]
            if match[2] in pair:
                raise LoadError(f"{shown} and {pair[match[2]]!r} are of one module")
            pair[match[2]] = name
            if self._file.dtype(name) not in _FLOATS or len(self._file.shape(name)) != 2:
                raise LoadError(f"{shown} is no matrix of floats")
        if not found:
            raise LoadError(f"{self._file.path}: there is no tensor in it")
        for key, pair in found.items():
            self._check_pair(key, pair)
        return {key: (pair["A"], pair["B"]) for key, pair in found.items()}

    def _check_pair(self, key: str, pair: Mapping[str, str]) -> None:
        if len(pair) < 2:
            raise LoadError(f"{self._file.path}: module {key!r} has one of lora_A and lora_B alone")
        inner, outer = self._file.shape(pair["A"])[0], self._file.shape(pair["B"])[1]
        if inner != outer or not 1 <= inner <= _MOST_RANK:
            raise LoadError(
                f"{self._file.path}: lora_A of {key!r} has {inner} rows, lora_B {outer} columns; "
                f"both are the rank, 1 to {_MOST_RANK}"
            )

    @property
    def summary(self) -> AdapterSummary:
        """See ``AdapterSummary``."""
        names = [name for pair in self._pairs.values() for name in pair]
        return AdapterSummary(
            rank=max(self._file.shape(first)[0] for first, _ in self._pairs.values()),
            numbers=sum(math.prod(self._file.shape(name)) for name in names),
        )

    def digest(self) -> str:
        """16 hexadecimal digits of all its numbers and its scales. Reads the whole file."""
        found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for key in sorted(self._pairs):
            found.update(f"{key} {self._scale.of(self._full[key], self._rank(key))!r}".encode())
            for name in self._pairs[key]:
                values = self._file.tensor(name)
                found.update(f" {values.dtype} {list(values.shape)}".encode())
                found.update(values.contiguous().view(torch.uint8).numpy().data)
        return found.hexdigest()

    def _rank(self, key: str) -> int:
        return self._file.shape(self._pairs[key][0])[0]

    def matrices(self, module: str, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        """[rank, inputs] and [outputs, rank] of a module of these sizes, in float32 or as wide as
        they are kept, on the CPU; the scale is in the second.

        Raises:
            LoadError: they are of another shape, or not finite.
        """
        key = module_key(module)
        assert key is not None
        names = self._pairs[key]
        rank = self._rank(key)
        shapes = (rank, inputs), (outputs, rank)
        found = []
        for name, shape in zip(names, shapes, strict=True):
            values = self._file.tensor(name)
            if tuple(values.shape) != shape:
                raise LoadError(
                    f"{self._file.path}: tensor {name!r} has shape {list(values.shape)}, the "
                    f"model's {key} asks for {list(shape)}: the adapter is of another model"
                )
            wide = values.to(torch.promote_types(values.dtype, torch.float32), copy=True)
            if not bool(wide.isfinite().all()):
                raise LoadError(f"{self._file.path}: tensor {name!r} is not finite")
            found.append(wide)
        self._taken.add(key)
        return found[0], found[1] * self._scale.of(self._full[key], rank)

    def check_all_taken(self) -> None:
        """Look at what no linear map has asked for.

        Raises:
            LoadError: there is such a module.
        """
        left = next((key for key in self._pairs if key not in self._taken), None)
        if left is not None:
            raise LoadError(
                f"{self._file.path}: module {left!r} is no linear map of this model that can have "
                "an adapter (experts, their router, indexers and convolutions cannot): train "
                "without it, or with the model's own names"
            )


class _Scale:
    """``lora_alpha`` over the rank, or over its root."""

    def __init__(self, fields: Fields) -> None:
        self._alpha = fields.number("lora_alpha", 8)
        self._of_root = fields.flag("use_rslora", False)
        self._patterns: list[tuple[NamePattern, float]] = []
        within = fields.within("alpha_pattern") or Fields(fields.path, {})
        for pattern in within.unread():
            alpha = within.number(pattern)
            try:
                self._patterns.append((expression(rf"(.*\.)?({pattern})$"), alpha))
            except UnknownSyntax as error:
                raise fields.error("alpha_pattern", pattern, f"a pattern: {error}") from error

    def of(self, module: str, rank: int) -> float:
        """The factor of a module's part, by its name in the file."""
        alpha = next(
            (value for pattern, value in self._patterns if pattern.fits(module)), self._alpha
        )
        return alpha / (math.sqrt(rank) if self._of_root else rank)


def _check_fields(fields: Fields) -> None:
    """Look at all that would change the arithmetic.

    Raises:
        LoadError: it is not known here.
    """
    fields.whole("peft_type", "LORA", "LORA: other kinds of adapters are not served")
    fields.size("r", 8)
    fields.whole("bias", "none", "none: biases are the model's own")
    start = fields.get("init_lora_weights", True)
    if start not in _STARTS:
        raise fields.error(
            "init_lora_weights",
            start,
            "one that leaves the model's weights as they are: save it with "
            "path_initial_model_for_weight_conversion",
        )
    _check_rest(fields.without(*_WITHOUT_EFFECT))


def _check_rest(fields: Fields) -> None:
    for name in fields.unread():
        value: Any = fields.get(name)
        if value not in (None, False, [], {}, ""):
            raise fields.error(name, value, "absent, null or false: it is not served")
