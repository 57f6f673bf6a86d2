"""Shapes of the ``random:NAME`` models with experts and attention of several kinds
(``runtime.model.presets``). No torch here."""

from dataclasses import replace

from runtime.model.chosen_blocks import BlockChoice
from runtime.model.config import Attention, Experts, Gated, Layer, ModelConfig, Router
from runtime.model.preset_parts import GROUPED_EXPERTS, QWEN3_TINY, SHAPING, TINY_VOCAB, alike
from runtime.model.rope_config import RopeConfig

_CORRECTED = Router(
    num_experts=8, per_token=2, scores="sigmoid", normalise=True, correction=True, scale=1.7
)
_CLAMPED = Gated(size=48, activation="clamped_swiglu", limit=7.0)
_M3_TINY = Attention(heads=6, kv_heads=2, head_dim=16, rope=RopeConfig(rotated=8), norm="each")
_CHOOSING_TINY = replace(_M3_TINY, choice=BlockChoice(dim=12, size=16, count=2))
_NEIGHBOURS = Attention(heads=6, kv_heads=2, head_dim=16, interleaved=True)
_GATED = replace(QWEN3_TINY, gated=True, gate_apart=True)
_MIMO_FULL = Attention(
    heads=8,
    kv_heads=2,
    head_dim=24,
    rope=RopeConfig(rotated=8),
    value_dim=16,
    value_scale=0.7,
)
_MIMO_SLIDING = replace(_MIMO_FULL, kv_heads=4, window=19, sinks=True)
_LAGUNA_FULL = replace(
    QWEN3_TINY, rope=RopeConfig(rotated=8), gated_heads=True, gate_function="softplus"
)
_STEP_FULL = replace(QWEN3_TINY, rope=RopeConfig(theta=500.0, rotated=8), gated_heads=True)
_HELD = Gated(size=32, activation="clamped_after_silu", limit=0.3)

EXPERT_PRESETS: dict[str, ModelConfig] = {
    "minimax-m3-tiny": ModelConfig(
        model_type="minimax_m3_vl_text",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, _M3_TINY, _CLAMPED),
            *alike(
                2,
                _CHOOSING_TINY,
                Experts(
                    router=_CORRECTED,
                    each=replace(_CLAMPED, size=32),
                    shared=replace(_CLAMPED, size=32),
                ),
            ),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "hy-v3-tiny": ModelConfig(
        model_type="hy_v3",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, QWEN3_TINY, Gated(size=96)),
            *alike(
                2,
                QWEN3_TINY,
                Experts(router=_CORRECTED, each=Gated(size=32), shared=Gated(size=32)),
            ),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "dots1-tiny": ModelConfig(
        model_type="dots1",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, QWEN3_TINY, Gated(size=96)),
            *alike(1, QWEN3_TINY, GROUPED_EXPERTS),
            *alike(1, replace(QWEN3_TINY, window=21), GROUPED_EXPERTS),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "ernie4.5-moe-tiny": ModelConfig(
        model_type="ernie4_5_moe",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, _NEIGHBOURS, Gated(size=96)),
            *alike(
                2,
                _NEIGHBOURS,
                Experts(
                    router=replace(_CORRECTED, scores="softmax", scale=1.0),
                    each=Gated(size=32),
                    shared=Gated(size=64),
                ),
            ),
        ),
        max_context_tokens=8192,
        tie_embeddings=True,
        shaping=SHAPING,
    ),
    "afmoe-tiny": ModelConfig(
        model_type="afmoe",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(mixer=mixer, feed_forward=feed_forward, norms="both")
            for mixer, feed_forward in (
                (replace(_GATED, window=22), Gated(size=96)),
                (
                    replace(_GATED, rope=None),
                    Experts(router=_CORRECTED, each=Gated(size=32), shared=Gated(size=32)),
                ),
            )
        ),
        max_context_tokens=8192,
        embedding_scale=8.0,
        shaping=SHAPING,
    ),
    "laguna-tiny": ModelConfig(
        model_type="laguna",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(mixer=mixer, feed_forward=feed_forward)
            for mixer, feed_forward in (
                (_LAGUNA_FULL, Gated(size=96)),
                (
                    replace(_LAGUNA_FULL, heads=8, rope=RopeConfig(theta=700.0), window=21),
                    Experts(
                        router=replace(_CORRECTED, logit_cap=3.0),
                        each=Gated(size=32),
                        shared=Gated(size=32),
                    ),
                ),
                (
                    replace(_LAGUNA_FULL, gated_heads=False, gated=True, gate_apart=True),
                    Experts(router=_CORRECTED, each=Gated(size=32), shared=Gated(size=32)),
                ),
            )
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "step3.5-tiny": ModelConfig(
        model_type="step3p5",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(mixer=mixer, feed_forward=feed_forward)
            for mixer, feed_forward in (
                (_STEP_FULL, replace(_HELD, size=96)),
                (
                    replace(_STEP_FULL, heads=8, rope=RopeConfig(), window=18),
                    Experts(router=_CORRECTED, each=_HELD, shared=replace(_HELD, limit=0.7)),
                ),
                (
                    _STEP_FULL,
                    Experts(router=_CORRECTED, each=Gated(size=32), shared=Gated(size=32)),
                ),
            )
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "mimo-v2-tiny": ModelConfig(
        model_type="mimo_v2_flash",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, _MIMO_FULL, Gated(size=96)),
            *alike(1, _MIMO_SLIDING, Experts(router=_CORRECTED, each=Gated(size=32))),
            *alike(1, _MIMO_FULL, Experts(router=_CORRECTED, each=Gated(size=32))),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
}
"""By their names."""
