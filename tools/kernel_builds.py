"""The Triton kernels as they are launched somewhere: types, sizes, tilings, and what their code has
to be like. ``tools.compile_kernels`` compiles them.
"""

from collections.abc import Iterator
from typing import Any

import triton

from kernels.low_rank import OUTPUTS_EACH as OUTPUTS_OF_ADAPTERS
from kernels.paged_layout import MAX_DECODE_QUERIES
from kernels.triton_attention import extend_kernel, extend_tiling
from kernels.triton_coded import INPUTS_EACH as INPUTS_OF_CODES
from kernels.triton_coded import KINDS, NARROW_KINDS, coded_matmul_kernel
from kernels.triton_coded import OUTPUTS_EACH as OUTPUTS_OF_CODES
from kernels.triton_decode import (
    JOIN_WARPS,
    SPLITS_AT_ONCE,
    decode_join_kernel,
    decode_split_kernel,
)
from kernels.triton_elementwise import (
    COLUMNS_EACH,
    GATES,
    add_rms_norm_kernel,
    gate_kernel,
    norm_warps,
    squared_relu_kernel,
)
from kernels.triton_expert_routing import COLUMNS_EACH as COLUMNS_OF_PARTS
from kernels.triton_expert_routing import (
    EXPERTS_EACH,
    MOST_PICKS,
    combined_kernel,
    route_kernel,
    sorted_picks_kernel,
)
from kernels.triton_fp8 import COLUMNS_EACH as COLUMNS_OF_ROWS
from kernels.triton_fp8 import quantise_rows_kernel
from kernels.triton_grouped import COLUMNS_EACH as COLUMNS_OF_EXPERTS
from kernels.triton_grouped import (
    FEW_ROWS,
    INPUTS_EACH,
    MANY_ROWS,
    grouped_matmul_kernel,
)
from kernels.triton_grouped_coded import grouped_coded_kernel
from kernels.triton_kv import HEADS_EACH, norm_rope_write_kernel
from kernels.triton_latent_rows import HEADS_EACH as HEADS_OF_LATENTS
from kernels.triton_latent_rows import latent_rows_kernel
from kernels.triton_low_rank import INPUTS_EACH as INPUTS_OF_ADAPTERS
from kernels.triton_low_rank import (
    RANKS_EACH,
    low_rank_down_kernel,
    low_rank_up_kernel,
)
from kernels.triton_low_rank import (
    TOKENS_EACH as TOKENS_OF_ADAPTERS,
)
from kernels.triton_prefix import SPLITS as PREFIX_SPLITS
from kernels.triton_prefix import shared_prefix_kernel
from kernels.triton_sampling import (
    SEARCH_WARPS,
    TOKENS_EACH,
    best_kernel,
    draw_kernel,
    penalise_kernel,
    search_kernel,
    sum_kernel,
    weigh_kernel,
)
from kernels.triton_split_plan import (
    MIN_TILES,
    PROGRAMS,
    SEQUENCES_AT_ONCE,
    split_plan_kernel,
)
from kernels.triton_tiles import decode_tiling
from tools.kernel_build import Build, pointers
from tools.recurrent_builds import recurrent_builds

HEAD_COUNTS = {"qwen3-0.6b": (16, 8), "qwen3-8b": (32, 8), "one-to-one": (8, 8)}
"""(heads, kv heads) with head_dim 128."""


def builds() -> Iterator[Build]:
    """Every kernel as launched for bf16; attention of one shape for fp16 and fp32 as well."""
    for model, sizes in HEAD_COUNTS.items():
        yield from _attention(f"{model} bf16", "bf16", *sizes, window=0)
    heads, kv_heads = HEAD_COUNTS["qwen3-8b"]
    for kind in ("fp16", "fp32"):
        yield from _attention(f"qwen3-8b {kind}", kind, heads, kv_heads, window=0)
    for head_dim in (64, 256):
        name = f"head size {head_dim} bf16"
        yield from _attention(name, "bf16", heads, kv_heads, window=0, head_dim=head_dim)
    for heads_of_latents in (20, 128):
        name = f"latents, {heads_of_latents} heads bf16"
        yield from _attention(name, "bf16", heads_of_latents, 1, window=0, head_dim=576)
    yield from _attention("window bf16", "bf16", heads, kv_heads, window=4096)
    for window in (0, 128):
        name = f"sinks window {window} bf16"
        yield from _attention(name, "bf16", 64, 8, window=window, head_dim=64, sinks=True)
    yield from _attention("qwen3-8b fp8 KV", "bf16", heads, kv_heads, window=0, fp8=True)
    for norm, fp8 in ((True, False), (False, False), (True, True)):
        yield Build(
            name=f"norm_rope_write norm={norm}{' fp8 KV' if fp8 else ''}",
            kernel=norm_rope_write_kernel,
            types=pointers("bf16", "qkv", "weight", "cos", "sin")
            | {"slots_ptr": "*i64"}
            | pointers("bf16", "q")
            | pointers("fp8e4nv" if fp8 else "bf16", "k", "v")
            | {"eps": "fp32"},
            constants={
                "HEADS": heads,
                "KV_HEADS": kv_heads,
                "HEAD_DIM": 128,
                "BLOCK_SIZE": 16,
                "SCALED": fp8,
                "NORM": norm,
                "BLOCK_H": HEADS_EACH,
                "BLOCK_HALF": 64,
            },
            num_warps=4,
        )
    for hidden in (1024, 4096, 8192):
        yield Build(
            name=f"add_rms_norm {hidden}",
            kernel=add_rms_norm_kernel,
            types=pointers("bf16", "x", "residual", "weight", "normed", "total") | {"eps": "fp32"},
            constants={"SIZE": hidden, "BLOCK": hidden},
            num_warps=norm_warps(hidden),
        )
    yield Build(
        name="quantise_rows 4096",
        kernel=quantise_rows_kernel,
        types=pointers("bf16", "x")
        | pointers("u8", "values")
        | pointers("fp32", "scales")
        | {"stride": "i32"},
        constants={"SIZE": 4096, "BLOCK": COLUMNS_OF_ROWS},
        num_warps=4,
    )
    for gate, number in GATES.items():
        yield Build(
            name=f"{gate} gate 12288",
            kernel=gate_kernel,
            types=pointers("bf16", "gate_up", "out") | {"limit": "fp32"},
            constants={"SIZE": 12288, "KIND": number, "BLOCK": COLUMNS_EACH},
            num_warps=4,
        )
    yield from _experts()
    yield Build(
        name="latent_rows 128 heads of DeepSeek V3",
        kernel=latent_rows_kernel,
        types=pointers("bf16", "queries", "rows", "weight", "cos", "sin")
        | pointers("i64", "slots")
        | pointers("bf16", "blocks", "out")
        | {"query_stride": "i32", "row_stride": "i32", "eps": "fp32"},
        constants={
            "HEADS": 128,
            "QUERY_DIM": 192,
            "RANK": 512,
            "ROTARY": 64,
            "BLOCK_H": HEADS_OF_LATENTS,
            "BLOCK_R": 512,
            "BLOCK_HALF": 32,
        },
        num_warps=4,
    )
    yield Build(
        name="squared_relu",
        kernel=squared_relu_kernel,
        types=pointers("bf16", "x", "out") | {"count": "i32"},
        constants={"BLOCK": COLUMNS_EACH},
        num_warps=4,
    )
    yield from _adapters()
    yield from _sampling(151936)
    yield from _coded()
    yield from recurrent_builds()
    for block in (FEW_ROWS, MANY_ROWS):
        yield Build(
            name=f"grouped_matmul {block} rows",
            kernel=grouped_matmul_kernel,
            types=pointers("bf16", "x", "matrices")
            | pointers("i64", "rows", "starts")
            | pointers("bf16", "bias", "out"),
            constants={
                "OUTPUTS": 1536,
                "INPUTS": 2048,
                "EXPERTS": 128,
                "PADDED": 128,
                "SORTED": False,
                "HAS_BIAS": True,
                "BLOCK_M": block,
                "BLOCK_N": COLUMNS_OF_EXPERTS,
                "BLOCK_K": INPUTS_EACH,
            },
            num_warps=4,
            needs="HGMMA" if block >= 64 else "LDGSTS",
        )


def _coded() -> Iterator[Build]:
    """Products with codes, one matrix and those of experts: few rows and many, every kind, integers
    with and without zero points."""
    for kind, zeros in (*((kind, False) for kind in KINDS), ("int4", True), ("int8", True)):
        parts = (
            pointers("bf16", "x")
            | pointers("u8", "values")
            | pointers("u8" if kind == "e2m1" else "fp32", "scales")
            | pointers("i8", "zeros")
        )
        for block in (FEW_ROWS, MANY_ROWS):
            name = f"{kind}{' zeros' if zeros else ''} {block} rows"
            constants = {
                "OUTPUTS": 4096,
                "INPUTS": 4096,
                "GROUP": 32 if kind == "e2m1" else 128,
                "GROUPS": 128 if kind == "e2m1" else 32,
                "KIND": KINDS[kind],
                "NARROW": kind in NARROW_KINDS,
                "HAS_ZEROS": zeros,
                "BLOCK_M": block,
                "BLOCK_N": OUTPUTS_OF_CODES,
                "BLOCK_K": INPUTS_OF_CODES,
            }
            needs = "HGMMA" if block >= 64 else "HMMA"
            yield Build(
                name=f"coded_matmul {name}",
                kernel=coded_matmul_kernel,
                types=parts | pointers("bf16", "out") | {"rows": "i32"},
                constants=constants,
                num_warps=4,
                needs=needs,
            )
            yield Build(
                name=f"grouped_coded {name}",
                kernel=grouped_coded_kernel,
                types=parts | pointers("i64", "rows", "starts") | pointers("bf16", "bias", "out"),
                constants=constants
                | {"EXPERTS": 128, "PADDED": 128, "SORTED": True, "HAS_BIAS": False},
                num_warps=4,
                needs=needs,
            )


def _adapters() -> Iterator[Build]:
    """Queries, keys and values of an 8B model, ranks of 16."""
    ranks, rank, outputs = 48, 16, 6144
    sizes = {"BLOCK_T": TOKENS_OF_ADAPTERS, "BLOCK_R": RANKS_EACH}
    yield Build(
        name="low_rank_down 4096 inputs",
        kernel=low_rank_down_kernel,
        types=pointers("bf16", "x", "down")
        | pointers("i32", "adapters")
        | pointers("fp32", "inner")
        | {"tokens": "i32", "x_stride": "i32"},
        constants={
            "INPUTS": 4096,
            "RANKS": ranks,
            "PRECISION": "ieee",
            "BLOCK_I": INPUTS_OF_ADAPTERS,
            **sizes,
        },
        num_warps=4,
    )
    yield Build(
        name="low_rank_up 6144 outputs",
        kernel=low_rank_up_kernel,
        types=pointers("fp32", "inner")
        | pointers("bf16", "up")
        | pointers("i32", "tiles", "adapters")
        | pointers("bf16", "result")
        | {"tokens": "i32", "result_stride": "i32"},
        constants={
            "OUTPUTS": outputs,
            "RANKS": ranks,
            "RANK": rank,
            "PRECISION": "tf32",
            "BLOCK_O": OUTPUTS_OF_ADAPTERS,
            **sizes,
        },
        num_warps=4,
    )


def _experts() -> Iterator[Build]:
    """Choosing among 128 experts, and among 256 in groups; sorting; adding up."""
    for name, experts, grouped in (("qwen3", 128, False), ("deepseek-v3", 256, True)):
        yield Build(
            name=f"route {name}",
            kernel=route_kernel,
            types=pointers("fp32", "logits", "correction")
            | pointers("bf16", "weights")
            | pointers("i64", "chosen")
            | {"scale": "fp32", "least_sum": "fp32"},
            constants={
                "EXPERTS": experts,
                "PADDED": experts,
                "TAKEN": 8,
                "SLOTS": 8,
                "GROUPS": 8 if grouped else 1,
                "PADDED_GROUPS": 8 if grouped else 1,
                "CHOSEN_GROUPS": 4 if grouped else 1,
                "BEST_OF_GROUP": 2,
                "SIGMOID": grouped,
                "CORRECTED": grouped,
                "NORMALISE": True,
            },
            num_warps=4,
        )
    for picks in (64, MOST_PICKS):
        yield Build(
            name=f"sorted_picks {picks}",
            kernel=sorted_picks_kernel,
            types=pointers("i64", "chosen", "rows", "starts", "places") | {"picks": "i32"},
            constants={"TAKEN": 8, "PADDED": picks, "EXPERTS": 128, "BLOCK_E": EXPERTS_EACH},
            num_warps=8,
        )
    for some in (False, True):
        yield Build(
            name=f"combined{' some' if some else ''}",
            kernel=combined_kernel,
            types=pointers("bf16", "parts")
            | pointers("i64", "places")
            | pointers("bf16", "weights")
            | pointers("i1" if some else "bf16", "mine")
            | pointers("bf16", "out"),
            constants={"HIDDEN": 2048, "TAKEN": 8, "SOME": some, "BLOCK": COLUMNS_OF_PARTS},
            num_warps=4,
        )


def _sampling(vocab: int) -> Iterator[Build]:
    """Drawing from logits of Qwen's vocabulary."""
    sizes = {"BLOCK": TOKENS_EACH}
    tiles = sizes | {"TILES": triton.next_power_of_2(triton.cdiv(vocab, TOKENS_EACH))}
    row = pointers("i32", "distances") | pointers("i64", "numbers", "reached")
    filters = {"COUNTED": True, "WEIGHED": True}
    logits = pointers("fp32", "logits") | pointers("i32", "words") | pointers("i64", "numbers")
    lengths = dict.fromkeys(("stride", "num_words", "vocab_size"), "i32")
    parts = pointers("fp32", "best") | pointers("i32", "first")
    yield Build(
        name="sampling penalise",
        kernel=penalise_kernel,
        types=pointers("fp32", "logits")
        | pointers("i64", "rows", "tokens")
        | pointers("fp32", "factors")
        | {"stride": "i32", "count": "i32"},
        constants=sizes,
        num_warps=4,
        fused=False,
    )
    yield Build(
        name="sampling best",
        kernel=best_kernel,
        types=logits | parts | lengths,
        constants=sizes | {"MASKED": True},
        num_warps=4,
    )
    yield Build(
        name="sampling weigh",
        kernel=weigh_kernel,
        types=logits
        | pointers("fp32", "best")
        | pointers("i32", "distances")
        | pointers("i64", "sums")
        | lengths,
        constants=tiles | {"MASKED": True},
        num_warps=4,
    )
    for count in (True, False):
        yield Build(
            name=f"sampling search {'top-k' if count else 'top-p'}",
            kernel=search_kernel,
            types=row | {"vocab_size": "i32", "step": "i32"},
            constants=sizes | {"COUNT": count, "COUNTED": True},
            num_warps=SEARCH_WARPS,
        )
    yield Build(
        name="sampling sum",
        kernel=sum_kernel,
        types=row | pointers("i64", "sums") | {"vocab_size": "i32"},
        constants=sizes | filters,
        num_warps=4,
    )
    yield Build(
        name="sampling draw",
        kernel=draw_kernel,
        types=row
        | parts
        | pointers("i64", "sums", "tokens")
        | {"tiles": "i32", "vocab_size": "i32"},
        constants=tiles | filters,
        num_warps=4,
    )


def _attention(
    name: str,
    kind: str,
    heads: int,
    kv_heads: int,
    *,
    window: int,
    fp8: bool = False,
    head_dim: int = 128,
    sinks: bool = False,
) -> Iterator[Build]:
    sizes = _shared_sizes(heads, kv_heads, fp8, head_dim) | {"WINDOW": window, "SINKS": sinks}
    beside = pointers("fp32" if sinks else "i32", "sinks")
    kv = "fp8e4nv" if fp8 else kind
    layout = pointers("i32", "starts", "lengths")
    wide = kind == "fp32"
    kinds = [(1, False), (8, False), (MAX_DECODE_QUERIES, False)]
    for queries, shared in kinds if window else [*kinds, (1, True)]:
        label = f"{name} q={queries}{' shared' if shared else ''}"
        rows = queries * heads // kv_heads
        tiling = decode_tiling(rows, 4 if wide else 2, head_dim, scaled=fp8)
        single = queries == 1 and not wide and head_dim <= 128
        own = {"ROW_TILES": triton.cdiv(rows, tiling.rows), "BLOCK_M": tiling.rows}
        if not shared:
            yield Build(
                name=f"decode_split {label}",
                kernel=decode_split_kernel,
                types=pointers(kind, "q", "out")
                | beside
                | pointers(kv, "k", "v")
                | pointers("fp32", "part", "peak")
                | pointers("i32", "plan", "tables")
                | {"table_stride": "i32", "scale_log2": "fp32"},
                constants=sizes | own | {"BLOCK_N": tiling.keys},
                num_warps=tiling.num_warps,
                num_stages=tiling.num_stages,
                blocks_at_once=(2 if fp8 else 3) if single else 1,
                needs="LDGSTS",
                max_registers=128 if queries == 1 and head_dim <= 256 else 255,
            )
        if queries == 1:
            yield Build(
                name=f"decode_join {label}",
                kernel=decode_join_kernel,
                types=pointers("fp32", "part", "peak", "prefix_part", "prefix_peak")
                | pointers(kind, "out")
                | beside
                | pointers("i32", "plan")
                | {"items": "i32"},
                constants={
                    name: sizes[name]
                    for name in ("HEADS", "KV_HEADS", "HEAD_DIM", "BLOCK_D", "SINKS")
                }
                | own
                | {
                    "SHARED": shared,
                    "SPLITS_AT_ONCE": SPLITS_AT_ONCE,
                    "PREFIX_SPLITS": PREFIX_SPLITS,
                },
                num_warps=JOIN_WARPS * triton.cdiv(sizes["BLOCK_D"], 128),
                max_registers=128,
            )
            yield _split_plan(label, tiling.keys, window, shared=shared)
    if not window:
        yield _shared_prefix(name, kind, kv, (heads, kv_heads), head_dim)
    tiling = extend_tiling(4 if wide else 2, head_dim)
    yield Build(
        name=f"extend {name}",
        kernel=extend_kernel,
        types=pointers(kind, "q", "out")
        | beside
        | pointers(kv, "k", "v")
        | layout
        | pointers("i32", "tables")
        | {"table_stride": "i32", "scale_log2": "fp32"},
        constants=sizes
        | {
            "MIN_QUERIES": MAX_DECODE_QUERIES + 1,
            "BLOCK_M": tiling.rows,
            "BLOCK_N": tiling.keys,
        },
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        # float32 is for checks: exact products have no tensor-core form.
        needs=None if wide else "HGMMA" if tiling.rows >= 64 else "HMMA",
    )


def _split_plan(label: str, tile_keys: int, window: int, *, shared: bool) -> Build:
    return Build(
        name=f"split_plan {label}",
        kernel=split_plan_kernel,
        types=pointers("i32", "plan", "starts", "lengths", "skips")
        | dict.fromkeys(("num_sequences", "shares", "items"), "i32"),
        constants={
            "SHARED": shared,
            "WINDOW": window,
            "MAX_QUERIES": MAX_DECODE_QUERIES,
            "BLOCK_N": tile_keys,
            "PROGRAMS": PROGRAMS,
            "MIN_TILES": MIN_TILES,
            "BATCH": SEQUENCES_AT_ONCE,
        },
        num_warps=4,
    )


def _shared_sizes(heads: int, kv_heads: int, fp8: bool, head_dim: int) -> dict[str, Any]:
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_D": min(head_dim, 512),
        "BLOCK_SIZE": 16,
        "SCALED": fp8,
    }


def _shared_prefix(name: str, kind: str, kv: str, heads: tuple[int, int], head_dim: int) -> Build:
    members = 64
    rows = members * heads[0] // heads[1]
    tiling = decode_tiling(rows, 4 if kind == "fp32" else 2, head_dim, scaled=kv != kind)
    return Build(
        name=f"shared_prefix {name}",
        kernel=shared_prefix_kernel,
        types=pointers(kind, "q")
        | pointers(kv, "k", "v")
        | pointers("fp32", "part", "peak")
        | pointers("i32", "starts", "tables", "members", "prefixes")
        | {"table_stride": "i32", "num_members": "i32", "scale_log2": "fp32"},
        constants=_shared_sizes(*heads, kv == "fp8e4nv", head_dim)
        | {"QUERIES": 1, "BLOCK_M": tiling.rows, "BLOCK_N": tiling.keys},
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        needs="LDGSTS",
    )
