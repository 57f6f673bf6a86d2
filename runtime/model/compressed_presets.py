"""Shapes of the ``random:NAME`` models whose attention compresses what is far
(``runtime.model.presets``). No torch here."""

from dataclasses import replace

from runtime.model.compressed import Compressed
from runtime.model.config import Experts, Gated, Layer, ModelConfig, Router
from runtime.model.latent import Indexer
from runtime.model.preset_parts import SHAPING, TINY_VOCAB, YARN
from runtime.model.rope_config import RopeConfig
from runtime.model.streams import Streams

_FAR = replace(YARN, theta=160_000.0, attention_factor=1.0)
_NEAR = Compressed(
    heads=4,
    dim=16,
    rotary_dim=8,
    query_rank=20,
    near=24,
    output_groups=2,
    output_rank=12,
    rope=RopeConfig(),
)
_CHOSEN = replace(_NEAR, rope=_FAR, ratio=4, indexer=Indexer(heads=6, dim=12, top_k=9))
_ALL = replace(_NEAR, rope=_FAR, ratio=32)
_MLP = Gated(size=32, activation="clamped_silu", limit=1.5)
_EXPERTS = Experts(
    router=Router(
        num_experts=8,
        per_token=3,
        scores="sqrt_softplus",
        wide=True,
        normalise=True,
        correction=True,
        scale=1.5,
        least_sum=1e-20,
    ),
    each=_MLP,
    shared=_MLP,
)
_BY_TABLE = replace(
    _EXPERTS, router=replace(_EXPERTS.router, correction=False, table_rows=TINY_VOCAB)
)

COMPRESSED_PRESETS: dict[str, ModelConfig] = {
    "deepseek-v4-tiny": ModelConfig(
        model_type="deepseek_v4",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            Layer(mixer=_NEAR, feed_forward=_BY_TABLE),
            Layer(mixer=_CHOSEN, feed_forward=_EXPERTS),
            Layer(mixer=_ALL, feed_forward=_EXPERTS),
            Layer(mixer=_CHOSEN, feed_forward=_EXPERTS),
        ),
        max_context_tokens=8192,
        streams=Streams(count=4, iterations=20, eps=1e-6),
        shaping=SHAPING,
    ),
}
"""By their names."""
