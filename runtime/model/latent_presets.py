"""The ``random:NAME`` models with attention over latents, and the parts that they share with
others (``runtime.model.presets``).
"""

from dataclasses import replace

from runtime.model.config import (
    Experts,
    Gated,
    KeepsKV,
    Layer,
    LogitShaping,
    ModelConfig,
    Router,
)
from runtime.model.latent import Indexer, Latent
from runtime.model.rope_config import RopeConfig

SHAPING = LogitShaping(num_plain=256, end_of_turn=258)
TINY_VOCAB = 272


YARN = RopeConfig(kind="yarn", factor=32.0, original_max_position=64, attention_factor=1.3)
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

LATENT_REAL = Latent(heads=8, rank=512, plain_dim=128, rotary_dim=64, value_dim=128)
"""DeepSeek's and Kimi's, but for the number of heads."""
_LATENT_TINY = Latent(heads=4, rank=24, plain_dim=12, rotary_dim=8, value_dim=10, query_rank=20)
_SPARSE_TINY = replace(
    _LATENT_TINY, rope=YARN, scale=0.3, indexer=Indexer(heads=6, dim=12, top_k=16)
)
_CHOOSING = Indexer(heads=5, dim=10, top_k=24, interleaved=True)
_CHOOSING_TINY = replace(_LATENT_TINY, indexer=_CHOOSING)
_SHARING_TINY = replace(_LATENT_TINY, indexer=replace(_CHOOSING, shared=True))


def alike(count: int, mixer: KeepsKV, feed_forward: Gated | Experts) -> tuple[Layer, ...]:
    return (Layer(mixer=mixer, feed_forward=feed_forward),) * count


LATENT_PRESETS: dict[str, ModelConfig] = {
    "deepseek-v3-tiny": ModelConfig(
        model_type="deepseek_v3",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, replace(_LATENT_TINY, rope=YARN, scale=0.3), Gated(size=96)),
            *alike(2, replace(_LATENT_TINY, rope=YARN, scale=0.3), GROUPED_EXPERTS),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "deepseek-v2-tiny": ModelConfig(
        model_type="deepseek_v2",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(
            2,
            replace(_LATENT_TINY, query_rank=None, interleaved=False, bias=True),
            Experts(
                router=Router(
                    num_experts=8,
                    per_token=3,
                    wide=True,
                    normalise=False,
                    groups=4,
                    chosen_groups=2,
                    best_of_group=1,
                    scale=1.3,
                ),
                each=Gated(size=32),
                shared=Gated(size=64),
            ),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "deepseek-v32-tiny": ModelConfig(
        model_type="deepseek_v32",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, _SPARSE_TINY, Gated(size=96)),
            *alike(2, _SPARSE_TINY, GROUPED_EXPERTS),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "glm-dsa-tiny": ModelConfig(
        model_type="glm_moe_dsa",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, _CHOOSING_TINY, Gated(size=96)),
            *alike(2, _SHARING_TINY, GROUPED_EXPERTS),
            *alike(1, _CHOOSING_TINY, GROUPED_EXPERTS),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
}
"""By their names."""
