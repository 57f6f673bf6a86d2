"""Shapes of the ``random:NAME`` models: seeded weights for trials, tests and benchmarks.

They speak the byte tokenizer of ``runtime/assets/byte_tokenizer``; larger vocabularies are
padding that is never emitted. See ``LogitShaping`` for how their text comes to an end.
"""

from runtime.model.config import (
    Attention,
    Experts,
    Gated,
    Layer,
    LoadError,
    LogitShaping,
    ModelConfig,
    RopeConfig,
    Router,
)

PREFIX = "random:"

_SHAPING = LogitShaping(num_plain=256, end_of_turn=258)
_TINY_VOCAB = 272

_MILLION = RopeConfig(theta=1000000.0)
_LLAMA3 = RopeConfig(theta=500000.0, kind="llama3", factor=8.0, original_max_position=1024)
_QWEN3_TINY = Attention(heads=4, kv_heads=2, head_dim=16, norm="each")
_EXPERTS_TINY = Experts(
    router=Router(num_experts=8, per_token=3, normalise=True), each=Gated(size=64)
)


def _alike(count: int, mixer: Attention, feed_forward: Gated | Experts) -> tuple[Layer, ...]:
    return (Layer(mixer=mixer, feed_forward=feed_forward),) * count


_PRESETS = {
    "qwen3-tiny": ModelConfig(
        model_type="qwen3",
        vocab_size=_TINY_VOCAB,
        hidden_size=64,
        layers=_alike(2, _QWEN3_TINY, Gated(size=128)),
        max_context_tokens=8192,
        shaping=_SHAPING,
    ),
    "qwen2-tiny": ModelConfig(
        model_type="qwen2",
        vocab_size=_TINY_VOCAB,
        hidden_size=64,
        layers=_alike(
            2,
            Attention(heads=4, kv_heads=1, head_dim=16, bias=True),
            Gated(size=128),
        ),
        max_context_tokens=8192,
        tie_embeddings=True,
        shaping=_SHAPING,
    ),
    "llama-tiny": ModelConfig(
        model_type="llama",
        vocab_size=_TINY_VOCAB,
        hidden_size=64,
        layers=_alike(
            2, Attention(heads=4, kv_heads=4, head_dim=16, rope=_LLAMA3), Gated(size=128)
        ),
        max_context_tokens=8192,
        shaping=_SHAPING,
    ),
    "mistral-tiny": ModelConfig(
        model_type="mistral",
        vocab_size=_TINY_VOCAB,
        hidden_size=64,
        layers=_alike(
            2,
            Attention(heads=4, kv_heads=2, head_dim=16, window=40),
            Gated(size=128),
        ),
        max_context_tokens=8192,
        shaping=_SHAPING,
    ),
    "qwen3-moe-tiny": ModelConfig(
        model_type="qwen3_moe",
        vocab_size=_TINY_VOCAB,
        hidden_size=64,
        layers=(
            Layer(mixer=_QWEN3_TINY, feed_forward=Gated(size=128)),
            Layer(mixer=_QWEN3_TINY, feed_forward=_EXPERTS_TINY),
        ),
        max_context_tokens=8192,
        shaping=_SHAPING,
    ),
    "qwen3-100m": ModelConfig(
        model_type="qwen3",
        vocab_size=32768,
        hidden_size=768,
        layers=_alike(
            12,
            Attention(heads=12, kv_heads=4, head_dim=64, rope=_MILLION, norm="each"),
            Gated(size=2048),
        ),
        max_context_tokens=32768,
        tie_embeddings=True,
        shaping=_SHAPING,
    ),
    "qwen3-0.6b": ModelConfig(
        model_type="qwen3",
        vocab_size=151936,
        hidden_size=1024,
        layers=_alike(
            28,
            Attention(heads=16, kv_heads=8, head_dim=128, rope=_MILLION, norm="each"),
            Gated(size=3072),
        ),
        max_context_tokens=40960,
        tie_embeddings=True,
        shaping=_SHAPING,
    ),
    "qwen3-8b": ModelConfig(
        model_type="qwen3",
        vocab_size=151936,
        hidden_size=4096,
        layers=_alike(
            36,
            Attention(heads=32, kv_heads=8, head_dim=128, rope=_MILLION, norm="each"),
            Gated(size=12288),
        ),
        max_context_tokens=40960,
        shaping=_SHAPING,
    ),
    "qwen3-500m": ModelConfig(
        model_type="qwen3",
        vocab_size=32768,
        hidden_size=896,
        layers=_alike(
            24,
            Attention(heads=14, kv_heads=2, head_dim=64, rope=_MILLION, norm="each"),
            Gated(size=4864),
        ),
        max_context_tokens=32768,
        tie_embeddings=True,
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
