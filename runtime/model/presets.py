"""Shapes of the ``random:NAME`` models: seeded weights for trials, tests and benchmarks.

They speak the byte tokenizer of ``runtime/assets/byte_tokenizer``; larger vocabularies are
padding that is never emitted. See ``LogitShaping`` for how their text comes to an end.
"""

from runtime.model.config import (
    ExpertsConfig,
    LoadError,
    LogitShaping,
    ModelConfig,
    RopeConfig,
)

PREFIX = "random:"

_SHAPING = LogitShaping(num_plain=256, end_of_turn=258)
_TINY_VOCAB = 272

_PRESETS = {
    "qwen3-tiny": ModelConfig(
        model_type="qwen3",
        vocab_size=_TINY_VOCAB,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        max_context_tokens=8192,
        qk_norm=True,
        shaping=_SHAPING,
    ),
    "qwen2-tiny": ModelConfig(
        model_type="qwen2",
        vocab_size=_TINY_VOCAB,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=128,
        max_context_tokens=8192,
        qkv_bias=True,
        tie_embeddings=True,
        shaping=_SHAPING,
    ),
    "llama-tiny": ModelConfig(
        model_type="llama",
        vocab_size=_TINY_VOCAB,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        intermediate_size=128,
        max_context_tokens=8192,
        rope=RopeConfig(theta=500000.0, kind="llama3", factor=8.0, original_max_position=1024),
        shaping=_SHAPING,
    ),
    "mistral-tiny": ModelConfig(
        model_type="mistral",
        vocab_size=_TINY_VOCAB,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        max_context_tokens=8192,
        windows=(40, 40),
        shaping=_SHAPING,
    ),
    "qwen3-moe-tiny": ModelConfig(
        model_type="qwen3_moe",
        vocab_size=_TINY_VOCAB,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        max_context_tokens=8192,
        qk_norm=True,
        experts=ExpertsConfig(
            num_experts=8,
            per_token=3,
            intermediate_size=64,
            normalise=True,
            layers=(False, True),
        ),
        shaping=_SHAPING,
    ),
    "qwen3-100m": ModelConfig(
        model_type="qwen3",
        vocab_size=32768,
        hidden_size=768,
        num_layers=12,
        num_heads=12,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=2048,
        max_context_tokens=32768,
        rope=RopeConfig(theta=1000000.0),
        tie_embeddings=True,
        qk_norm=True,
        shaping=_SHAPING,
    ),
    "qwen3-0.6b": ModelConfig(
        model_type="qwen3",
        vocab_size=151936,
        hidden_size=1024,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=3072,
        max_context_tokens=40960,
        rope=RopeConfig(theta=1000000.0),
        tie_embeddings=True,
        qk_norm=True,
        shaping=_SHAPING,
    ),
    "qwen3-8b": ModelConfig(
        model_type="qwen3",
        vocab_size=151936,
        hidden_size=4096,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=12288,
        max_context_tokens=40960,
        rope=RopeConfig(theta=1000000.0),
        qk_norm=True,
        shaping=_SHAPING,
    ),
    "qwen3-500m": ModelConfig(
        model_type="qwen3",
        vocab_size=32768,
        hidden_size=896,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        intermediate_size=4864,
        max_context_tokens=32768,
        rope=RopeConfig(theta=1000000.0),
        tie_embeddings=True,
        qk_norm=True,
        shaping=_SHAPING,
    ),
}


def random_model_config(name: str) -> ModelConfig:
    """Shape of ``random:name``.

    Raises:
        LoadError: there is no such preset.
    """
    if name not in _PRESETS:
        raise LoadError(f"no random model {name!r}; there are: {', '.join(sorted(_PRESETS))}")
    return _PRESETS[name]
