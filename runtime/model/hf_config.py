"""``config.json`` of a Hugging Face folder -> ``ModelConfig``.

Which families there are, and what is the same for all. Every field is checked where it is read.
What would change the arithmetic and is not known here is an error, never ignored.

Most folders of today are wrappers around a text part and others, for images or sound
(``text_config``); the text part is read as if it stood alone.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime.model.compressed_families import COMPRESSED_FAMILIES
from runtime.model.config import LoadError, ModelConfig
from runtime.model.config_fields import Fields, read_json_object
from runtime.model.delta_families import DELTA_FAMILIES
from runtime.model.dense_families import DENSE_FAMILIES
from runtime.model.dots_families import DOTS_FAMILIES
from runtime.model.exaone_families import EXAONE_FAMILIES
from runtime.model.expert_families import EXPERT_FAMILIES
from runtime.model.family import Family
from runtime.model.gemma4_families import GEMMA4_FAMILIES
from runtime.model.glm_next_families import GLM_NEXT_FAMILIES
from runtime.model.hy4_families import HY4_FAMILIES
from runtime.model.hybrid_families import HYBRID_FAMILIES
from runtime.model.kimi_families import KIMI_FAMILIES
from runtime.model.laguna_families import LAGUNA_FAMILIES
from runtime.model.latent_families import LATENT_FAMILIES
from runtime.model.ling_families import LING_FAMILIES
from runtime.model.mamba_families import MAMBA_FAMILIES
from runtime.model.mimo_families import MIMO_FAMILIES
from runtime.model.minimax_families import MINIMAX_FAMILIES
from runtime.model.more_dense_families import MORE_DENSE_FAMILIES
from runtime.model.quantisation import read_quantisation
from runtime.model.solar_families import SOLAR_FAMILIES
from runtime.model.step_families import STEP_FAMILIES

FAMILIES: dict[str, Family] = {
    **DENSE_FAMILIES,
    **MORE_DENSE_FAMILIES,
    **EXAONE_FAMILIES,
    **DOTS_FAMILIES,
    **EXPERT_FAMILIES,
    **LAGUNA_FAMILIES,
    **GEMMA4_FAMILIES,
    **LATENT_FAMILIES,
    **HY4_FAMILIES,
    **MINIMAX_FAMILIES,
    **MIMO_FAMILIES,
    **STEP_FAMILIES,
    **SOLAR_FAMILIES,
    **COMPRESSED_FAMILIES,
    **HYBRID_FAMILIES,
    **DELTA_FAMILIES,
    **KIMI_FAMILIES,
    **GLM_NEXT_FAMILIES,
    **LING_FAMILIES,
    **MAMBA_FAMILIES,
}

_TEXT_PART = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm5_next": "glm5_next_text",
    "kimi_k25": "deepseek_v3",
    "lfm3_vl": "lfm3",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "step3p7": "step3p5",
}
"""``model_type`` of a wrapper's text part where that does not say."""


def read_model_config(folder: Path, *, max_context_tokens: int | None = None) -> ModelConfig:
    """Describe the decoder of a folder.

    Args:
        max_context_tokens: the longest context that is served; None: the model's own.

    Raises:
        LoadError: a field is missing, wrong, or asks for what the decoder cannot do.
    """
    path = folder / "config.json"
    fields = _text_part(path, read_json_object(path))
    model_type = fields.text("model_type")
    if model_type not in FAMILIES:
        raise fields.error("model_type", model_type, f"one of {', '.join(FAMILIES)}")
    quantisation = read_quantisation(fields)
    try:
        config = FAMILIES[model_type].read(fields, max_context_tokens)
    except ValueError as error:
        raise LoadError(f"{path}: {error}") from error
    more = FAMILIES[model_type].quantised
    if more is not None and quantisation is not None:
        quantisation = more(fields, quantisation)
    fields.check_rest()
    return replace(config, quantisation=quantisation)


def _text_part(path: Path, values: dict[str, Any]) -> Fields:
    """The fields of the decoder. Of a wrapper, those that hold for the whole come before the text
    part's own."""
    whole = Fields(path, values)
    text = values.get("text_config")
    if text is None:
        return whole
    if not isinstance(text, dict):
        raise whole.error("text_config", text, "an object")
    if text.get("text_config") is not None:
        raise whole.error("text_config.text_config", "set", "absent: a text part has no other")
    wrapper = whole.text("model_type")
    own = {name: value for name, value in text.items() if value is not None}
    own.setdefault("model_type", _TEXT_PART.get(wrapper))
    for name in ("tie_word_embeddings", "quantization_config", "compression_config"):
        if values.get(name) is not None:
            own[name] = values[name]
    nulls = {name: None for name, value in text.items() if value is None}
    return Fields(path, {**nulls, **own}, prefix="text_config.")
