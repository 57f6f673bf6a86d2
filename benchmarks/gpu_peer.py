"""A decode step of the same model by ``transformers`` with a static cache: the peer at hand."""

import importlib
from typing import Any

import torch

from benchmarks.dense_shape import dense_layer
from benchmarks.gpu_cases import wall_seconds
from benchmarks.gpu_plan import Plan
from runtime.model.config import ModelConfig

_CALLS = 16


def measure_peer(
    plan: Plan, dtype: torch.dtype, device: torch.device, *, compiled: bool
) -> list[dict[str, Any]]:
    """Milliseconds of a step from token ids to logits, by the clock; weights are random.

    Args:
        compiled: by ``torch.compile``, which records CUDA graphs; else as it comes.
    """
    name, config = plan.models[-1]
    model = make_peer(config, dtype, device)
    step: Any = torch.compile(model, mode="reduce-overhead") if compiled else model
    rows: list[dict[str, Any]] = []
    for batch, context in plan.graph_steps:
        cache = _cache_of(model, batch, context, device)
        token = torch.zeros(batch, 1, dtype=torch.int64, device=device)

        def call(cache: Any = cache, token: Any = token) -> object:
            return step(input_ids=token, cache=cache).logits

        taken = wall_seconds(call, device)
        rows.append(
            {
                "model": name,
                "batch": batch,
                "context": context,
                "compiled": int(compiled),
                "ms": taken * 1e3,
            }
        )
    return rows


def _cache_of(model: Any, batch: int, context: int, device: torch.device) -> Any:
    """A static cache that holds ``context`` tokens of each sequence and has room for the calls;
    what the tokens are does not matter here, so nothing computes them."""
    transformers: Any = importlib.import_module("transformers")
    cache = transformers.StaticCache(config=model.config, max_cache_len=context + _CALLS)
    model(input_ids=torch.zeros(batch, 1, dtype=torch.int64, device=device), cache=cache)
    for layer in cache.layers:
        layer.cumulative_length.fill_(context - 1)
    return cache


def make_peer(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Any:
    """The model of this shape in ``transformers``, its weights drawn on the device."""
    transformers: Any = importlib.import_module("transformers")
    mixer, mlp, _ = dense_layer(config)
    shape = transformers.Qwen3Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=mlp.size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=mixer.heads,
        num_key_value_heads=mixer.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_context_tokens,
        tie_word_embeddings=False,
    )
    with torch.device(device):
        return transformers.Qwen3ForCausalLM._from_config(shape, dtype=dtype).eval()
