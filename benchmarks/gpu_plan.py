"""The measurements of the GPU benchmark: shapes, contexts, models."""

from dataclasses import dataclass, replace

from runtime.model.config import Experts, Gated, ModelConfig, Router
from runtime.model.presets import random_model_config

BLOCK_SIZE = 16

QWEN3_06B = replace(random_model_config("qwen3-0.6b"), shaping=None)
QWEN3_8B = replace(random_model_config("qwen3-8b"), shaping=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentPlan:
    """A layer that keeps a matrix for each head."""

    name: str
    sequences: int
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    corrects: bool = True
    """Values are corrected by what the matrix has for their key."""
    by_channel: bool = False
    """Each number of a key decays on its own."""
    prompt: int = 1024
    """Tokens of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes that are measured."""

    heads: int
    kv_heads: int
    head_dim: int
    checks: tuple[tuple[tuple[int, int], ...], ...]
    """Batches that must agree with the reference; (context, new tokens) of each sequence."""
    attention: tuple[tuple[str, tuple[int, ...]], ...]
    """Decodes: name and context lengths."""
    verify: tuple[int, int, tuple[int, ...]]
    """Sequences, context and the numbers of query tokens."""
    shared_prefix: tuple[int, int, int]
    """Sequences, tokens they share, tokens each has of its own."""
    models: tuple[tuple[str, ModelConfig], ...]
    steps: tuple[tuple[int, int], ...]
    """Whole steps: (sequences, context)."""
    copy_bytes: int
    round_bytes: int
    """KV that calls go round before they meet the same pool again."""
    rotated_bytes: int
    """The same for a matrix's copies."""
    swept: int | None
    """How many variants of a sweep are tried; None: all."""
    sampling: tuple[tuple[int, int], ...]
    """Draws: (rows, vocabulary)."""
    matrices: tuple[tuple[str, int, int], ...]
    """Products in fp8: name, outputs, inputs."""
    matrix_rows: tuple[int, ...]
    fp8_decodes: tuple[tuple[str, tuple[int, ...]], ...]
    """Decodes over keys and values in fp8: name and context lengths."""
    experts: Experts
    experts_hidden: int
    expert_tokens: tuple[int, ...]
    verified_steps: tuple[int, int, tuple[int, ...]]
    """Whole steps that verify drafts: sequences, context, and the numbers of query tokens; the
    first is a decode."""
    graph_steps: tuple[tuple[int, int], ...]
    """Steps by a runner that records and by one that does not: (sequences, context)."""
    engine_turns: tuple[int, ...]
    """How many turns decode side by side in a whole engine."""
    engine_prompt: int
    engine_steps: int
    prefill: tuple[tuple[int, int], ...]
    """Chunks of a prompt: tokens, and the context they come behind."""
    moved_blocks: int
    """Blocks that go to host memory and back at once."""
    recurrent: tuple[RecurrentPlan, ...]
    """One layer of each kind."""


FULL = Plan(
    heads=32,
    kv_heads=8,
    head_dim=128,
    checks=(
        ((4096, 1), (17, 1), (1, 1), (30000, 1)),
        ((3000, 5), (40, 32), (9, 9)),
        ((2048, 2048), (5000, 300)),
        ((5000, 1), (700, 500), (90, 4)),
    ),
    attention=(
        ("B1 1k", (1024,)),
        ("B1 4k", (4096,)),
        ("B1 32k", (32768,)),
        ("B1 128k", (131072,)),
        ("B4 32k", (32768,) * 4),
        ("B16 4k", (4096,) * 16),
        ("B32 4k", (4096,) * 32),
        ("B64 4k", (4096,) * 64),
        ("B64 12k", (12288,) * 64),
        ("15 x 512 + 64k", (512,) * 15 + (65536,)),
    ),
    verify=(16, 8192, (1, 2, 4, 8, 16, 32)),
    shared_prefix=(64, 8192, 4096),
    models=(("Qwen3-0.6B", QWEN3_06B), ("Qwen3-8B", QWEN3_8B)),
    steps=tuple((batch, context) for context in (4096, 32768) for batch in (1, 16, 64)),
    copy_bytes=4 << 30,
    round_bytes=512 << 20,
    rotated_bytes=120_000_000,  # twice the second-level cache of an H200
    swept=None,
    sampling=((1, 151936), (64, 151936)),
    matrices=(("8B gate and up", 24576, 4096), ("8B down", 4096, 12288)),
    matrix_rows=(1, 16, 64, 2048),
    fp8_decodes=(
        ("B1 4k", (4096,)),
        ("B1 128k", (131072,)),
        ("B64 4k", (4096,) * 64),
        ("B64 12k", (12288,) * 64),
    ),
    experts=Experts(
        router=Router(num_experts=128, per_token=8, normalise=True), each=Gated(size=768)
    ),
    experts_hidden=2048,
    expert_tokens=(1, 16, 64, 2048),
    verified_steps=(1, 4096, (1, 2, 3, 4, 5, 6, 7, 8, 16)),
    graph_steps=((1, 4096), (16, 4096), (64, 4096)),
    engine_turns=(1, 16, 64),
    engine_prompt=1024,
    engine_steps=96,
    prefill=(
        *((tokens, 0) for tokens in (256, 512, 1024, 2048)),
        (512, 8192),
        (2048, 8192),
        (2048, 32768),
    ),
    moved_blocks=1024,
    recurrent=(
        RecurrentPlan(
            name="gated delta net", sequences=64, key_heads=16, heads=32, key_dim=128, value_dim=128
        ),
        RecurrentPlan(
            name="Mamba-2",
            sequences=64,
            key_heads=8,
            heads=64,
            key_dim=128,
            value_dim=64,
            corrects=False,
        ),
        RecurrentPlan(
            name="Kimi delta attention",
            sequences=64,
            key_heads=32,
            heads=32,
            key_dim=128,
            value_dim=128,
            by_channel=True,
        ),
    ),
)

_TINY = random_model_config("qwen3-tiny")
_ONE_LAYER = replace(_TINY, layers=_TINY.layers[:1])

REHEARSAL = replace(
    FULL,
    heads=4,
    kv_heads=2,
    head_dim=16,
    checks=(((20, 1), (3, 1)), ((40, 34), (9, 2))),
    attention=(("B1 1k", (33,)), ("skewed", (5, 40))),
    verify=(2, 20, (1, 3)),
    shared_prefix=(3, 512, 20),
    models=(("Qwen3-8B", _ONE_LAYER),),
    steps=((2, 20),),
    copy_bytes=1 << 16,
    round_bytes=1 << 14,
    rotated_bytes=1 << 14,
    swept=2,
    sampling=((2, 300),),
    matrices=(("gate", 48, 32),),
    matrix_rows=(1, 5),
    fp8_decodes=(("B2", (20, 33)),),
    experts=Experts(router=Router(num_experts=4, per_token=2, normalise=True), each=Gated(size=16)),
    experts_hidden=32,
    expert_tokens=(1, 9),
    verified_steps=(1, 20, (1, 3)),
    graph_steps=((2, 20),),
    engine_turns=(2,),
    engine_prompt=8,
    engine_steps=3,
    prefill=((24, 0), (24, 40)),
    moved_blocks=70,
    recurrent=(
        RecurrentPlan(
            name="gated delta net",
            sequences=2,
            key_heads=1,
            heads=2,
            key_dim=8,
            value_dim=12,
            prompt=70,
        ),
        RecurrentPlan(
            name="Kimi delta attention",
            sequences=2,
            key_heads=2,
            heads=2,
            key_dim=8,
            value_dim=12,
            by_channel=True,
            prompt=70,
        ),
    ),
)
"""The same on sizes that Triton's interpreter manages: every path, no figure that counts."""
