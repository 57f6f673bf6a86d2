"""Shapes of the ``random:NAME`` models of Seed-OSS, GLM-4, EXAONE 4 and Arcee
(``runtime.model.presets``). No torch here."""

from dataclasses import replace

from runtime.model.config import Attention, Gated, Layer, ModelConfig, Plain
from runtime.model.preset_parts import QWEN3_TINY, SHAPING, TINY_VOCAB, alike
from runtime.model.rope_config import RopeConfig

DENSE_PRESETS: dict[str, ModelConfig] = {
    "seed-oss-tiny": ModelConfig(
        model_type="seed_oss",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(
            2,
            Attention(heads=6, kv_heads=2, head_dim=16, bias=True, output_bias=True),
            Gated(size=96, bias=True),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "arcee-tiny": ModelConfig(
        model_type="arcee",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(2, Attention(heads=4, kv_heads=2, head_dim=16), Plain(size=128)),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "glm4-tiny": ModelConfig(
        model_type="glm4",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            Layer(
                mixer=Attention(
                    heads=4,
                    kv_heads=2,
                    head_dim=16,
                    rope=RopeConfig(rotated=8),
                    interleaved=True,
                    bias=True,
                ),
                feed_forward=Gated(size=96),
                norms="both",
            ),
        )
        * 2,
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "exaone4-tiny": ModelConfig(
        model_type="exaone4",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(mixer=mixer, feed_forward=Gated(size=96), norms="after")
            for mixer in (replace(QWEN3_TINY, window=23), replace(QWEN3_TINY, rope=None))
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
}
"""By their names."""
