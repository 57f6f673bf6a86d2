"""Shapes of the ``random:NAME`` models with attention over latents (``runtime.model.presets``). No
torch here."""

from dataclasses import replace

from runtime.model.config import Experts, Gated, ModelConfig, Router
from runtime.model.latent import Indexer, Latent
from runtime.model.preset_parts import (
    GROUPED_EXPERTS,
    LATENT_TINY,
    SHAPING,
    TINY_VOCAB,
    YARN,
    alike,
)
from runtime.model.streams import Streams

LATENT_REAL = Latent(heads=8, rank=512, plain_dim=128, rotary_dim=64, value_dim=128)
"""DeepSeek's and Kimi's, but for the number of heads."""
_SOFTMAX = replace(GROUPED_EXPERTS.router, scores="softmax", correction=False)
_SPARSE_TINY = replace(
    LATENT_TINY, rope=YARN, scale=0.3, indexer=Indexer(heads=6, dim=12, top_k=16)
)
_CHOOSING = Indexer(heads=5, dim=10, top_k=24, interleaved=True)
_CHOOSING_TINY = replace(LATENT_TINY, indexer=_CHOOSING)
_SHARING_TINY = replace(LATENT_TINY, indexer=replace(_CHOOSING, shared=True))
_SINKING_TINY = replace(
    LATENT_TINY,
    interleaved=False,
    gated="numbers",
    sinks=True,
    indexer=Indexer(heads=5, dim=10, top_k=24, turns_last=True, eps=1e-5),
)
_SINKING_SHARING_TINY = replace(
    _SINKING_TINY, indexer=replace(_CHOOSING, turns_last=True, eps=1e-5, shared=True)
)


LATENT_PRESETS: dict[str, ModelConfig] = {
    "deepseek-v3-tiny": ModelConfig(
        model_type="deepseek_v3",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, replace(LATENT_TINY, rope=YARN, scale=0.3), Gated(size=96)),
            *alike(2, replace(LATENT_TINY, rope=YARN, scale=0.3), GROUPED_EXPERTS),
        ),
        max_context_tokens=8192,
        shaping=SHAPING,
    ),
    "mistral4-tiny": ModelConfig(
        model_type="mistral4",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=alike(
            2,
            replace(LATENT_TINY, rope=replace(YARN, query_beta=0.3)),
            replace(GROUPED_EXPERTS, router=_SOFTMAX),
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
            replace(LATENT_TINY, query_rank=None, interleaved=False, bias=True),
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
    "axk1-tiny": ModelConfig(
        model_type="axk1",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, LATENT_TINY, Gated(size=96)),
            *(replace(each, norms="around_mlp") for each in alike(2, LATENT_TINY, GROUPED_EXPERTS)),
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
    "hy4-tiny": ModelConfig(
        model_type="hy_v4",
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        layers=(
            *alike(1, _SINKING_TINY, Gated(size=96)),
            *alike(
                1,
                _SINKING_SHARING_TINY,
                replace(GROUPED_EXPERTS, each=Gated(size=32, activation="clamped_silu", limit=0.7)),
            ),
            *alike(1, _SINKING_TINY, GROUPED_EXPERTS),
        ),
        max_context_tokens=8192,
        streams=Streams(count=3, iterations=None, eps=1e-6, largest=1.6, behind_eps=1e-6),
        shaping=SHAPING,
    ),
}
"""By their names."""
