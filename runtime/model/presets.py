"""Shapes of the ``random:NAME`` models: seeded weights for trials, tests and benchmarks.

They speak the byte tokenizer of ``runtime/assets/byte_tokenizer``; larger vocabularies are
padding that is never emitted. See ``LogitShaping`` for how their text comes to an end.
"""

from dataclasses import replace

from runtime.model.compressed_presets import COMPRESSED_PRESETS
from runtime.model.config import (
    Attention,
    Experts,
    Gated,
    Layer,
    LoadError,
    ModelConfig,
    Router,
)
from runtime.model.dense_presets import DENSE_PRESETS
from runtime.model.expert_presets import EXPERT_PRESETS
from runtime.model.gemma_presets import GEMMA_PRESETS
from runtime.model.hybrid_presets import HYBRID_PRESETS
from runtime.model.latent_presets import LATENT_PRESETS, LATENT_REAL
from runtime.model.preset_parts import GROUPED_EXPERTS, QWEN3_TINY, SHAPING, TINY_VOCAB, YARN, alike
from runtime.model.rope_config import RopeConfig

PREFIX = "random:"

_MILLION = RopeConfig(theta=1000000.0)
_LLAMA3 = RopeConfig(theta=500000.0, kind="llama3", factor=8.0, original_max_position=1024)
_EXPERTS_TINY = Experts(
    router=Router(num_experts=8, per_token=3, normalise=True), each=Gated(size=64)
)

_UNTRUNCATED = replace(YARN, truncate=False)
_GROWING = replace(YARN, query_beta=0.3)
_HALF_TURNED = Attention(heads=6, kv_heads=2, head_dim=16, rope=RopeConfig(rotated=8), norm="each")

PRESETS: dict[str, ModelConfig] = {
    **LATENT_PRESETS,
    **EXPERT_PRESETS,
    **DENSE_PRESETS,
    **COMPRESSED_PRESETS,
    **HYBRID_PRESETS,
    "qwen3-tiny": ModelConfig(
        model_type="qwen3",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(2, QWEN3_TINY, Gated(size=128)),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "qwen3-tiny-4": ModelConfig(
        model_type="qwen3",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(2, replace(QWEN3_TINY, kv_heads=4), Gated(size=128)),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "qwen2-tiny": ModelConfig(
        model_type="qwen2",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(
            2,
            Attention(heads=4, kv_heads=1, head_dim=16, bias=True),
            Gated(size=128),
        ),
        max_context_tokens=8192,
        tie_embeddings=True,
        shaping=SHAPING,
    ),
    "llama-tiny": ModelConfig(
        model_type="llama",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(2, Attention(heads=4, kv_heads=4, head_dim=16, rope=_LLAMA3), Gated(size=128)),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "mistral-tiny": ModelConfig(
        model_type="mistral",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(
            2,
            Attention(heads=4, kv_heads=2, head_dim=16, window=40),
            Gated(size=128),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "qwen3-moe-tiny": ModelConfig(
        model_type="qwen3_moe",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            Layer(mixer=QWEN3_TINY, feed_forward=Gated(size=128)),
            Layer(mixer=QWEN3_TINY, feed_forward=_EXPERTS_TINY),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "qwen3-moe-tiny-4": ModelConfig(
        model_type="qwen3_moe",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            Layer(mixer=replace(QWEN3_TINY, kv_heads=4), feed_forward=Gated(size=128)),
            Layer(mixer=replace(QWEN3_TINY, kv_heads=4), feed_forward=_EXPERTS_TINY),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "qwen2-moe-tiny": ModelConfig(
        model_type="qwen2_moe",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(
            2,
            Attention(heads=3, kv_heads=1, head_dim=16, bias=True),
            Experts(
                router=Router(num_experts=6, per_token=2, normalise=False),
                each=Gated(size=32),
                shared=Gated(size=48),
                shared_gate=True,
            ),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    **GEMMA_PRESETS,
    "smollm3-tiny": ModelConfig(
        model_type="smollm3",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(2, Attention(heads=4, kv_heads=1, head_dim=16), Gated(size=96)),
            *alike(1, Attention(heads=4, kv_heads=1, head_dim=16, rope=None), Gated(size=96)),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "granite-tiny": ModelConfig(
        model_type="granite",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            Layer(
                mixer=Attention(heads=4, kv_heads=2, head_dim=16, scale=0.1),
                feed_forward=Gated(size=96),
                residual_scale=0.4,
            ),
        )
        * 2,
        max_context_tokens=8192,
        embedding_scale=3.0,
        logit_divisor=2.0,
        shaping=SHAPING,
    ),
    "ministral3-tiny": ModelConfig(
        model_type="ministral3",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(2, Attention(heads=6, kv_heads=2, head_dim=16, rope=_GROWING), Gated(size=96)),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "glm4-moe-tiny": ModelConfig(
        model_type="glm4_moe",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, _HALF_TURNED, Gated(size=96)),
            *alike(2, _HALF_TURNED, GROUPED_EXPERTS),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "minimax-m2-tiny": ModelConfig(
        model_type="minimax_m2",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(
            2,
            replace(_HALF_TURNED, norm="all"),
            Experts(
                router=Router(
                    num_experts=8, per_token=2, scores="sigmoid", normalise=True, correction=True
                ),
                each=Gated(size=32),
            ),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "olmo2-tiny": ModelConfig(
        model_type="olmo2",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            Layer(
                mixer=Attention(heads=4, kv_heads=4, head_dim=16, norm="all"),
                feed_forward=Gated(size=96),
                norms="after",
            ),
        )
        * 2,
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "gpt-oss-tiny": ModelConfig(
        model_type="gpt_oss",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(
                mixer=Attention(
                    heads=8,
                    kv_heads=2,
                    head_dim=16,
                    rope=_UNTRUNCATED,
                    window=window,
                    bias=True,
                    output_bias=True,
                    sinks=True,
                ),
                feed_forward=Experts(
                    router=Router(num_experts=8, per_token=2, normalise=True, bias=True),
                    each=Gated(size=32, activation="clamped_swiglu", limit=7.0, bias=True),
                ),
            )
            for window in (18, None)
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "qwen3-100m": ModelConfig(
        model_type="qwen3",
        vocab_size=32768,
        hidden_size=768,
        layers=alike(
            12,
            Attention(heads=12, kv_heads=4, head_dim=64, rope=_MILLION, norm="each"),
            Gated(size=2048),
        ),
        max_context_tokens=32768,
        tie_embeddings=True,
        shaping=SHAPING,
    ),
    "deepseek-v3-100m": ModelConfig(
        model_type="deepseek_v3",
        vocab_size=32768,
        hidden_size=768,
        layers=alike(10, LATENT_REAL, Gated(size=2048)),
        max_context_tokens=32768,
        tie_embeddings=True,
        shaping=SHAPING,
    ),
    "qwen3-0.6b": ModelConfig(
        model_type="qwen3",
        vocab_size=151936,
        hidden_size=1024,
        layers=alike(
            28,
            Attention(heads=16, kv_heads=8, head_dim=128, rope=_MILLION, norm="each"),
            Gated(size=3072),
        ),
        max_context_tokens=40960,
        tie_embeddings=True,
        shaping=SHAPING,
    ),
    "qwen3-8b": ModelConfig(
        model_type="qwen3",
        vocab_size=151936,
        hidden_size=4096,
        layers=alike(
            36,
            Attention(heads=32, kv_heads=8, head_dim=128, rope=_MILLION, norm="each"),
            Gated(size=12288),
        ),
        max_context_tokens=40960,
        shaping=SHAPING,
    ),
    "qwen3-500m": ModelConfig(
        model_type="qwen3",
        vocab_size=32768,
        hidden_size=896,
        layers=alike(
            24,
            Attention(heads=14, kv_heads=2, head_dim=64, rope=_MILLION, norm="each"),
            Gated(size=4864),
        ),
        max_context_tokens=32768,
        tie_embeddings=True,
        shaping=SHAPING,
    ),
}


def random_model_config(name: str) -> ModelConfig:
    """Shape of ``random:name``.

    Raises:
        LoadError: there is no such preset.
    """
    if name not in PRESETS:
        raise LoadError(f"no random model {name!r}; there are: {', '.join(sorted(PRESETS))}")
    return PRESETS[name]
