"""Shapes of the ``random:gemma...`` models; see ``runtime.model.presets``. No torch here."""

from dataclasses import replace

from runtime.model.config import (
    Attention,
    Experts,
    Gated,
    Layer,
    LayerInputs,
    ModelConfig,
    Router,
)
from runtime.model.preset_parts import SHAPING, TINY_VOCAB
from runtime.model.rope_config import RopeConfig

_STRETCHED = RopeConfig(theta=1000000.0, kind="linear", factor=8.0)
_SLIDING = Attention(
    heads=4, kv_heads=1, head_dim=16, window=20, scale=1.0, norm="each", value_norm=True
)
_FULL = replace(
    _SLIDING,
    head_dim=32,
    window=None,
    rope=RopeConfig(theta=1000000.0, kind="proportional", rotated=8),
)
_MLP = Gated(size=64, activation="gelu_tanh")
_WIDER = Gated(size=128, activation="gelu_tanh")
_APART = Experts(
    router=Router(num_experts=8, per_token=3, normalise=True, scaled=True),
    each=Gated(size=32, activation="gelu_tanh"),
    shared=_MLP,
    apart=True,
)


def _gemma4(mixer: Attention, feed_forward: Gated | Experts) -> Layer:
    return Layer(mixer=mixer, feed_forward=feed_forward, norms="both", learnt_scale=True)


GEMMA_PRESETS: dict[str, ModelConfig] = {
    "gemma3-tiny": ModelConfig(
        model_type="gemma3_text",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=tuple(
            Layer(
                mixer=Attention(
                    heads=4,
                    kv_heads=2,
                    head_dim=24,
                    rope=rope,
                    window=window,
                    scale=0.25,
                    norm="each",
                ),
                feed_forward=Gated(size=96, activation="gelu_tanh"),
                norms="both",
            )
            for rope, window in ((RopeConfig(), 20), (RopeConfig(), 20), (_STRETCHED, None))
        ),
        max_context_tokens=8192,
        tie_embeddings=True,
        embedding_scale=0.5,
        shaping=SHAPING,
    ),
    "gemma3-100m": ModelConfig(
        model_type="gemma3_text",
        vocab_size=32768,
        hidden_size=768,
        layers=tuple(
            Layer(
                mixer=Attention(
                    heads=12, kv_heads=4, head_dim=64, rope=rope, window=window, norm="each"
                ),
                feed_forward=Gated(size=2048, activation="gelu_tanh"),
                norms="both",
            )
            for rope, window in (*((RopeConfig(), 512),) * 5, (_STRETCHED, None)) * 2
        ),
        max_context_tokens=32768,
        tie_embeddings=True,
        embedding_scale=0.5,
        shaping=SHAPING,
    ),
    "gemma4-tiny": ModelConfig(
        model_type="gemma4_text",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            _gemma4(_SLIDING, _MLP),
            _gemma4(_FULL, _MLP),
            _gemma4(_SLIDING, _MLP),
            _gemma4(replace(_SLIDING, shares=2), _WIDER),
            _gemma4(replace(_FULL, shares=1), _WIDER),
        ),
        max_context_tokens=8192,
        tie_embeddings=True,
        embedding_scale=8.0,
        logit_cap=30.0,
        layer_inputs=LayerInputs(vocabulary=TINY_VOCAB, size=8),
        shaping=SHAPING,
    ),
    "gemma4-moe-tiny": ModelConfig(
        model_type="gemma4_text",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            _gemma4(replace(_SLIDING, kv_heads=4), _APART),
            _gemma4(replace(_FULL, kv_heads=2, keys_are_values=True), _APART),
        ),
        max_context_tokens=8192,
        tie_embeddings=True,
        embedding_scale=8.0,
        logit_cap=30.0,
        shaping=SHAPING,
    ),
}
