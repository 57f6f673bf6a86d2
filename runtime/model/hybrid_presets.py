"""Shapes of the ``random:NAME`` models with recurrent layers (``runtime.model.presets``). No torch
here."""

from dataclasses import replace

from runtime.model.config import Attention, Gated, Layer, ModelConfig, Plain
from runtime.model.latent import Indexer
from runtime.model.preset_parts import (
    GROUPED_EXPERTS,
    LATENT_TINY,
    QWEN3_TINY,
    SHAPING,
    TINY_VOCAB,
)
from runtime.model.recurrent import GatedDelta, KimiDelta, Mamba2, ShortConv
from runtime.model.rope_config import RopeConfig
from runtime.model.streams import Streams

_MAMBA_TINY = Mamba2(
    heads=4, head_dim=12, groups=2, state_dim=16, taps=4, conv_bias=False, least_step=0.001
)
_LFM3_TINY = replace(QWEN3_TINY, gated_heads=True)

_HELD_MLP = Gated(size=32, activation="clamped_silu", limit=1.5)
_HELD_EXPERTS = replace(GROUPED_EXPERTS, each=_HELD_MLP, shared=_HELD_MLP)
_POOLED = replace(
    LATENT_TINY,
    rotary_dim=0,
    rope=None,
    interleaved=False,
    eps=1e-5,
    indexer=Indexer(heads=6, dim=10, top_k=24, pool=4),
)

HYBRID_PRESETS: dict[str, ModelConfig] = {
    "lfm2-tiny": ModelConfig(
        model_type="lfm2",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(
                mixer=QWEN3_TINY if attends else ShortConv(channels=64, taps=3),
                feed_forward=Gated(size=96),
            )
            for attends in (False, True, False, False, True)
        ),
        max_context_tokens=8192,
        tie_embeddings=True,
        shaping=SHAPING,
    ),
    "lfm3-tiny": ModelConfig(
        model_type="lfm3",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(mixer=mixer, feed_forward=Gated(size=96), norms="both")
            for mixer in (
                ShortConv(channels=64, taps=7),
                replace(_LFM3_TINY, rope=RopeConfig(kind="proportional", rotated=8)),
                ShortConv(channels=64, taps=7),
                replace(_LFM3_TINY, window=21),
                replace(_LFM3_TINY, rope=RopeConfig(kind="proportional", rotated=8)),
            )
        ),
        max_context_tokens=8192,
        tie_embeddings=True,
        shaping=SHAPING,
    ),
    "qwen3.5-tiny": ModelConfig(
        model_type="qwen3_5_text",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(
                mixer=replace(QWEN3_TINY, rope=RopeConfig(rotated=8), gated=True)
                if attends
                else GatedDelta(key_heads=2, value_heads=4, key_dim=16, value_dim=12, taps=4),
                feed_forward=Gated(size=96),
            )
            for attends in (False, False, True, False, True)
        ),
        max_context_tokens=8192,
        tie_embeddings=True,
        shaping=SHAPING,
    ),
    "granite-hybrid-tiny": ModelConfig(
        model_type="granitemoehybrid",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(
                mixer=Attention(heads=4, kv_heads=2, head_dim=16, rope=None, scale=0.2)
                if attends
                else Mamba2(heads=4, head_dim=12, groups=2, state_dim=16, taps=4),
                feed_forward=Gated(size=96),
                residual_scale=0.6,
            )
            for attends in (False, False, True, False)
        ),
        max_context_tokens=8192,
        tie_embeddings=True,
        embedding_scale=2.0,
        logit_divisor=1.5,
        shaping=SHAPING,
    ),
    "nemotron-h-tiny": ModelConfig(
        model_type="nemotron_h",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            Layer(mixer=_MAMBA_TINY, feed_forward=None),
            Layer(mixer=None, feed_forward=Plain(size=96)),
            Layer(mixer=Attention(heads=4, kv_heads=2, head_dim=16, rope=None), feed_forward=None),
            Layer(
                mixer=None,
                feed_forward=replace(GROUPED_EXPERTS, each=Plain(size=32), shared=Plain(size=48)),
            ),
            Layer(mixer=_MAMBA_TINY, feed_forward=None),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "kimi-linear-tiny": ModelConfig(
        model_type="kimi_linear",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(
                mixer=replace(LATENT_TINY, query_rank=None, rope=None, interleaved=False)
                if attends
                else KimiDelta(heads=4, head_dim=12, taps=4),
                feed_forward=GROUPED_EXPERTS if number in (1, 4) else Gated(size=96),
            )
            for number, attends in enumerate((False, False, True, False, True))
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "glm5-next-tiny": ModelConfig(
        model_type="glm5_next_text",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(
                mixer=_POOLED if attends else KimiDelta(heads=4, head_dim=12, taps=4, lowest=-5.0),
                feed_forward=_HELD_EXPERTS if number > 1 else _HELD_MLP,
            )
            for number, attends in enumerate((False, True, False, True))
        ),
        max_context_tokens=8192,
        norm_eps=1e-5,
        streams=Streams(count=4, iterations=20, eps=1e-6, learnt_end=False),
        shaping=SHAPING,
    ),
    "ling3-tiny": ModelConfig(
        model_type="bailing_hybrid",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(
                mixer=replace(LATENT_TINY, query_rank=None, gated="heads")
                if attends
                else KimiDelta(heads=4, head_dim=12, taps=4, two_steps=False, lowest=-5.0),
                feed_forward=GROUPED_EXPERTS if number > 0 else Gated(size=96),
            )
            for number, attends in enumerate((False, False, True, False))
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "olmo-hybrid-tiny": ModelConfig(
        model_type="olmo_hybrid",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(
                mixer=replace(QWEN3_TINY, rope=None, norm="all")
                if attends
                else GatedDelta(
                    key_heads=4,
                    value_heads=4,
                    key_dim=12,
                    value_dim=24,
                    taps=4,
                    most_beta=2.0,
                    norm_eps=1e-5,
                ),
                feed_forward=Gated(size=96),
                norms="after" if attends else "before",
            )
            for attends in (False, False, True, False)
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "qwen3.5-100m": ModelConfig(
        model_type="qwen3_5_text",
        vocab_size=32768,
        hidden_size=768,
        layers=tuple(
            Layer(
                mixer=Attention(
                    heads=6,
                    kv_heads=2,
                    head_dim=128,
                    rope=RopeConfig(theta=1000000.0, rotated=32),
                    norm="each",
                    gated=True,
                )
                if number % 4 == 3
                else GatedDelta(key_heads=3, value_heads=6, key_dim=128, value_dim=128, taps=4),
                feed_forward=Gated(size=1792),
            )
            for number in range(12)
        ),
        max_context_tokens=65536,
        tie_embeddings=True,
        shaping=SHAPING,
    ),
}
