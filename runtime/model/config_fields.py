"""Fields of a ``config.json``, read with their types: every error names file, field and remedy.

Knows no family. What changes the arithmetic of some family and was not read by the one at hand has
to have the value that changes nothing.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.folder_files import DESCRIPTION, UnfitFile, read_json
from runtime.model.config import LoadError

MOST_SIZE = 1 << 31
"""Sizes and positions are counted in 32 bits."""

_MOST = {
    "num_hidden_layers": 4096,
    "num_attention_heads": 65_536,
    "num_key_value_heads": 65_536,
    "num_experts": 65_536,
    "num_local_experts": 65_536,
    "n_routed_experts": 65_536,
    "n_shared_experts": 65_536,
    "hidden_size": 1 << 20,
    "head_dim": 1 << 20,
    "intermediate_size": 1 << 24,
    "moe_intermediate_size": 1 << 24,
    "shared_expert_intermediate_size": 1 << 24,
    "vocab_size": 1 << 24,
    "kv_lora_rank": 1 << 20,
    "q_lora_rank": 1 << 20,
    "qk_nope_head_dim": 1 << 20,
    "qk_rope_head_dim": 1 << 20,
    "v_head_dim": 1 << 20,
    "index_head_dim": 1 << 20,
    "index_n_heads": 65_536,
    "swa_head_dim": 1 << 20,
    "swa_v_head_dim": 1 << 20,
    "swa_num_attention_heads": 65_536,
    "swa_num_key_value_heads": 65_536,
    "dense_intermediate_size": 1 << 24,
    "shared_intermediate_size": 1 << 24,
    "share_expert_dim": 1 << 24,
    "moe_num_experts": 65_536,
    "num_attention_groups": 65_536,
    "num_sliding_attention_heads": 65_536,
}
"""Beyond these no model is: one that says so would be built for minutes before it fails."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logits_soft_cap": (),
    "clip_qkv": (),
    "qk_layernorm": (False,),
    "use_qk_norm": (False,),
    "use_bidirectional_attention": (False,),
    "is_causal": (True,),
    "alibi": (False,),
    "parallel_attn": (False,),
    "use_parallel_residual": (False,),
    "partial_rotary_factor": (1,),
    "rotary_pct": (1,),
    "rotary_dim": (),
    "no_rope_layers": (),
    "attention_chunk_size": (),
    "attention_sink_bias": (False,),
    "attn_output_gate": (False,),
    "kv_lora_rank": (),
    "index_topk": (),
    "index_topk_freq": (1,),
    "index_topk_pattern": (),
    "indexer_types": (),
    "index_kpool": (),
    "sparse_attention_config": (),
    "attention_value_scale": (1,),
    "use_attention_gate": (False,),
    "use_sandwich_norm": (False,),
    "add_swa_attention_sink_bias": (False,),
    "add_full_attention_sink_bias": (False,),
    "hybrid_layer_pattern": (),
    "attention_projection_layout": ("split",),
    "mla_use_nope": (False,),
    "linear_num_value_heads": (),
    "mamba_n_heads": (),
    "num_kv_shared_layers": (0,),
    "attention_k_eq_v": (False,),
    "enable_moe_block": (False,),
    "use_double_wide_mlp": (False,),
    "per_layer_config": ({},),
    "hidden_size_per_layer_input": (0,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "attention_multiplier": (),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "scale_emb": (1,),
    "scale_depth": (),
    "query_pre_attn_scalar": (),
    "swiglu_limit": (),
    "scoring_func": ("softmax",),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "n_shared_experts": (0,),
    "shared_expert_intermediate_size": (0,),
    "shared_intermediate_size": (0,),
    "n_group": (1,),
    "topk_group": (1,),
    "routed_scaling_factor": (1,),
    "first_k_dense_replace": (0,),
    "use_routing_bias": (False,),
    "linear_attn_config": (),
    "mla_use_output_gate": (False,),
    "attn_res_block_size": (),
    "routed_expert_hidden_size": (),
    "latent_moe_use_norm": (False,),
    "moe_router_activation_func": ("softmax",),
    "expert_dtype": (),
    "compress_ratios": (),
    "compress_rates": (),
    "hc_mult": (1,),
    "num_hash_layers": (0,),
    "gating": (False,),
    "use_head_wise_attn_gate": (False,),
    "num_attention_heads_per_layer": (),
    "attention_other_setting": (),
    "swa_rope_parameters": (),
    "swa_attention_sink_enabled": (False,),
    "moe_apply_router_weight_on_input": (False,),
    "moe_router_logit_softcapping": (0,),
    "swiglu_limits": (),
    "swiglu_limits_shared": (),
    "partial_rotary_factors": (),
    "o_groups": (1,),
}
"""Fields that change the arithmetic of some family, and the values with which they change nothing;
null is always one."""


def read_json_object(path: Path, *, unique: bool = False) -> dict[str, Any]:
    """The JSON object in a file; ``unique``: no object in it may have a name twice.

    Raises:
        LoadError: no such file, too large, or not a JSON object.
    """
    hook = unique_names if unique else None
    try:
        value = json.loads(read_json(path, DESCRIPTION), object_pairs_hook=hook)
    except FileNotFoundError as error:
        raise LoadError(f"{path}: {error.strerror}") from error
    except UnfitFile as error:
        raise LoadError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path}: a JSON object is needed, found {type(value).__name__}")
    return value


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different, for ``json.loads``. Raises ValueError."""
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name appears twice")
    return names


class Fields:
    """A JSON object's fields, read with their types; errors name file and field."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether the field is there, be it null."""
        return name in self._values

    def error(self, name: str, found: object, wanted: str) -> LoadError:
        shown = repr(found)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return LoadError(f"{self.path}: field {self._prefix}{name} is {shown}, not {wanted}")

    def within(self, name: str) -> "Fields | None":
        """The fields of an object in this one; None where it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, value, "an object")
        return Fields(self.path, value, prefix=f"{self._prefix}{name}.")

    def with_defaults(self, defaults: Mapping[str, Any]) -> "Fields":
        """The fields with values for those that are absent; what is read of it is read of this."""
        fuller = Fields(self.path, {**defaults, **self._values}, self._prefix)
        fuller._read = self._read
        return fuller

    def without(self, *names: str) -> "Fields":
        """The fields but for some, which count as read."""
        self._read.update(names)
        left = {name: value for name, value in self._values.items() if name not in names}
        fewer = Fields(self.path, left, self._prefix)
        fewer._read = self._read
        return fewer

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.error(name, value, "a string")
        return value

    def one_of(self, name: str, choices: Mapping[str, Any], default: str | None = None) -> Any:
        """The value that ``choices`` has for the field."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, value, " or ".join(choices))
        return choices[value]

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < MOST_SIZE:
            raise self.error(name, value, "a whole number of at least 1")
        if value > _MOST.get(name, value):
            raise self.error(name, value, f"at most {_MOST[name]}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, value, "a number")
        if not 0 <= value <= sys.float_info.max:
            raise self.error(name, value, "a finite number of at least 0")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers above 0."""
        value = self.get(name)
        if not isinstance(value, list) or not all(map(_is_positive, value)):
            raise self.error(name, value, "a list of numbers above 0")
        return tuple(map(float, value))

    def whole(self, name: str, wanted: Any, why: str) -> None:
        """Insist on one value of a field that may be absent."""
        if self.get(name, wanted) != wanted:
            raise self.error(name, self.get(name), why)

    def unread(self) -> list[str]:
        """Names of the fields that nobody has read."""
        return [name for name in self._values if name not in self._read]

    def check_known(self) -> None:
        """Look at what nobody has read, of an object all of whose fields change the arithmetic.

        Raises:
            LoadError: there is such a field.
        """
        for name, value in self._values.items():
            if name not in self._read and value is not None:
                raise self.error(name, value, "absent: nothing is known of it")

    def check_rest(self) -> None:
        """Look at what nobody has read.

        Raises:
            LoadError: it would change the arithmetic.
        """
        for name, neutral in _NEUTRAL.items():
            value = self._values.get(name)
            if name in self._read or value is None or value in neutral:
                continue
            shown = " or ".join(json.dumps(each) for each in (*neutral, None))
            raise self.error(name, value, f"{shown}: this model type computes without it")


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= sys.float_info.max
