"""What shapes of random models have in common (``runtime.model.presets``). No torch here."""

from runtime.model.config import (
    Attention,
    Experts,
    Gated,
    KeepsKV,
    Layer,
    LogitShaping,
    Plain,
    Router,
)
from runtime.model.latent import Latent
from runtime.model.rope_config import RopeConfig

SHAPING = LogitShaping(num_plain=256, end_of_turn=258)
"""How the text of all of them comes to an end."""
TINY_VOCAB = 272
"""Rows of small embeddings, some of them padding."""

QWEN3_TINY = Attention(heads=4, kv_heads=2, head_dim=16, norm="each")
"""Attention of many."""
LATENT_TINY = Latent(heads=4, rank=24, plain_dim=12, rotary_dim=8, value_dim=10, query_rank=20)
"""Latents of many."""
YARN = RopeConfig(kind="yarn", factor=32.0, original_max_position=64, attention_factor=1.3)
"""Stretched positions of many."""
GROUPED_EXPERTS = Experts(
    router=Router(
        num_experts=8,
        per_token=3,
        scores="sigmoid",
        normalise=True,
        correction=True,
        groups=4,
        chosen_groups=2,
        scale=1.7,
    ),
    each=Gated(size=32),
    shared=Gated(size=32),
)
"""Experts of many."""


def alike(count: int, mixer: KeepsKV, feed_forward: Gated | Plain | Experts) -> tuple[Layer, ...]:
    """So many layers of one kind."""
    return (Layer(mixer=mixer, feed_forward=feed_forward),) * count
