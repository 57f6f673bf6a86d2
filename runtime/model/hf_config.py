"""``config.json`` of a Hugging Face folder -> ``ModelConfig``.

Every field is checked where it is read; what a family's checkpoints leave out gets the
default that ``transformers`` has for it. What would change the arithmetic and is not known
here is an error, never ignored.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.folder_files import DESCRIPTION, UnfitFile, read_json
from runtime.model.config import ExpertsConfig, LoadError, ModelConfig, RopeConfig

_MOST = {
    "num_hidden_layers": 4096,
    "num_attention_heads": 65_536,
    "num_key_value_heads": 65_536,
    "num_experts": 65_536,
    "num_local_experts": 65_536,
    "hidden_size": 1 << 20,
    "head_dim": 1 << 20,
    "intermediate_size": 1 << 24,
    "moe_intermediate_size": 1 << 24,
    "vocab_size": 1 << 24,
}
"""Beyond these no model is: one that says so would be built for minutes before it fails."""

_MOST_SIZE = 1 << 31
"""Sizes and positions are counted in 32 bits."""

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        LoadError: no such file, too large, or not a JSON object.
    """
    try:
        value = json.loads(read_json(path, DESCRIPTION))
    except FileNotFoundError as error:
        raise LoadError(f"{path}: {error.strerror}") from error
    except UnfitFile as error:
        raise LoadError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path}: a JSON object is needed, found {type(value).__name__}")
    return value


def read_model_config(folder: Path) -> ModelConfig:
    """Describe the decoder of a folder.

    Raises:
        LoadError: a field is missing, wrong, or asks for what the decoder cannot do.
    """
    path = folder / "config.json"
    fields = _Fields(path, read_json_object(path))
    model_type = fields.text("model_type")
    if model_type not in _FAMILIES:
        raise fields.error("model_type", model_type, f"one of {', '.join(_FAMILIES)}")
    if fields.get("quantization_config") is not None:
        raise fields.error("quantization_config", "set", "an unquantised checkpoint")
    if fields.get("hidden_act", "silu") != "silu":
        raise fields.error("hidden_act", fields.get("hidden_act"), "silu")
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    layers = fields.size("num_hidden_layers")
    attention_bias = fields.flag("attention_bias", False)
    try:
        rope, context = _rope(fields)
        return ModelConfig(
            model_type=model_type,
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=fields.size("num_key_value_heads", heads),
            head_dim=fields.size("head_dim", 128 if model_type == "qwen3" else hidden // heads),
            intermediate_size=fields.size("intermediate_size"),
            max_context_tokens=context,
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=rope,
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            qkv_bias=True if model_type == "qwen2" else attention_bias,
            output_bias=False if model_type == "qwen2" else attention_bias,
            mlp_bias=fields.flag("mlp_bias", False),
            qk_norm=model_type in ("qwen3", "qwen3_moe"),
            windows=_windows(fields, model_type, layers),
            experts=_experts(fields, layers) if model_type == "qwen3_moe" else None,
        )
    except ValueError as error:
        raise LoadError(f"{path}: {error}") from error


def _windows(fields: "_Fields", model_type: str, layers: int) -> tuple[int | None, ...]:
    if model_type == "llama" or (
        model_type != "mistral" and not fields.flag("use_sliding_window", False)
    ):
        return ()
    if model_type == "mistral" and "sliding_window" in fields.values:
        given = fields.get("sliding_window")
    else:
        given = fields.get("sliding_window", 4096)
    if given is None:
        return ()
    window = fields.size("sliding_window", 4096)
    kinds = fields.get("layer_types")
    if kinds is None:
        every = model_type in ("mistral", "qwen3_moe")
        full = 0 if every else fields.number("max_window_layers", 28)
        return tuple(window if layer >= full else None for layer in range(layers))
    known = {"sliding_attention": window, "full_attention": None}
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= known.keys():
        raise fields.error("layer_types", kinds, f"{layers} of {', '.join(known)}")
    return tuple(known[kind] for kind in kinds)


def _experts(fields: "_Fields", layers: int) -> ExpertsConfig:
    spelled = "num_local_experts" if "num_local_experts" in fields.values else "num_experts"
    every = fields.size("decoder_sparse_step", 1)
    plain = fields.get("mlp_only_layers", [])
    if not isinstance(plain, list) or not all(type(layer) is int for layer in plain):
        raise fields.error("mlp_only_layers", plain, "a list of layer numbers")
    return ExpertsConfig(
        num_experts=fields.size(spelled, 128),
        per_token=fields.size("num_experts_per_tok", 8),
        intermediate_size=fields.size("moe_intermediate_size", 768),
        normalise=fields.flag("norm_topk_prob", False),
        layers=tuple(layer not in plain and (layer + 1) % every == 0 for layer in range(layers)),
    )


def _rope(fields: "_Fields") -> tuple[RopeConfig, int]:
    """Positions, and how many of them: the context. Both spellings: ``rope_parameters``, and
    ``rope_theta`` with ``rope_scaling``."""
    name = "rope_parameters" if fields.get("rope_parameters") is not None else "rope_scaling"
    given = fields.get(name)
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise fields.error(name, given, "an object")
    rope = _Fields(fields.path, given, prefix=f"{name}.")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if fields.number("partial_rotary_factor", 1.0) != 1 or (
        rope.number("partial_rotary_factor", 1.0) != 1
    ):
        raise fields.error("partial_rotary_factor", "set", "whole heads to be rotated")
    stated = fields.size("max_position_embeddings")
    if kind == "default":
        return RopeConfig(theta=theta), stated
    if kind not in ("linear", "llama3", "yarn"):
        raise rope.error("rope_type", kind, "default, linear, llama3 or yarn")
    factor = rope.number("factor")
    original = rope.size(
        "original_max_position_embeddings",
        fields.size("original_max_position_embeddings", stated),
    )
    if kind == "llama3":
        return _llama3(rope, theta, factor, original), stated
    context = _stretched(rope, factor, original)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=factor), context
    return _yarn(rope, theta, factor, original), context


def _stretched(rope: "_Fields", factor: float, original: int) -> int:
    """The context of linear and yarn: the factor times the length before. Folders in which users
    wrote the scaling themselves, as model cards tell them to, still state that length as
    ``max_position_embeddings``; those that came with it may state the whole there, and then
    ``original_max_position_embeddings`` beside it. llama3 folders always state the whole."""
    if factor * original >= _MOST_SIZE:
        raise rope.error("factor", factor, f"one that stretches {original} tokens to fewer")
    return int(factor * original)


def _llama3(rope: "_Fields", theta: float, factor: float, original: int) -> RopeConfig:
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=factor,
        original_max_position=original,
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
    )


def _yarn(rope: "_Fields", theta: float, factor: float, original: int) -> RopeConfig:
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(rope, factor),
        truncate=rope.flag("truncate", True),
    )


def _yarn_attention_factor(rope: "_Fields", factor: float) -> float:
    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return temperature(rope.number("mscale")) / temperature(rope.number("mscale_all_dim"))
    return temperature(1.0)


class _Fields:
    """A JSON object's fields, read with their types; errors name file and field."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self._prefix = prefix

    def error(self, name: str, found: object, wanted: str) -> LoadError:
        shown = repr(found)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return LoadError(f"{self.path}: field {self._prefix}{name} is {shown}, not {wanted}")

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise self.error(name, value, "a string")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < _MOST_SIZE:
            raise self.error(name, value, "a whole number of at least 1")
        if value > _MOST.get(name, value):
            raise self.error(name, value, f"at most {_MOST[name]}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, value, "a number")
        if not math.isfinite(value) or value < 0:
            raise self.error(name, value, "a finite number of at least 0")
        return float(value)
