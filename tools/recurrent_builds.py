"""The Triton kernels of recurrent layers as they are launched (``tools.kernel_builds``)."""

from collections.abc import Iterator

import triton

from kernels.delta_rows import CHUNK
from kernels.delta_shaping import LEAST_LENGTH
from kernels.triton_channel_delta import (
    COUNTED_EACH,
    channel_chunks_kernel,
    channel_handed_kernel,
    channel_turned_kernel,
    channel_within_kernel,
)
from kernels.triton_conv_windows import CHANNELS_EACH as CHANNELS_OF_WINDOWS
from kernels.triton_conv_windows import move_windows_kernel
from kernels.triton_delta import COLUMNS_EACH as COLUMNS_OF_MATRICES
from kernels.triton_delta import WARPS as WARPS_OF_MATRICES
from kernels.triton_delta import delta_few_kernel, delta_fold_kernel
from kernels.triton_delta_chunks import (
    CHUNK_STAGES,
    CHUNK_WARPS,
    TURNED_EACH,
    WITHIN_WARPS,
    block_of,
    delta_chunks_kernel,
    delta_turned_kernel,
    delta_within_kernel,
)
from kernels.triton_gated_norm import gated_norm_kernel, warps_of
from kernels.triton_ring_write import NUMBERS_EACH, ring_write_kernel
from kernels.triton_shaping import (
    WARPS,
    delta_shaping_kernel,
    kimi_shaping_kernel,
    mamba_shaping_kernel,
)
from kernels.triton_short_conv import CHANNELS_EACH, short_conv_kernel
from tools.kernel_build import Build, pointers

RECURRENT_SIZES = {
    "qwen3.5-35b": {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128},
    "mamba-2": {"KEY_HEADS": 8, "VALUE_HEADS": 64, "KEY_DIM": 128, "VALUE_DIM": 64},
    "kimi-linear": {"KEY_HEADS": 32, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128},
}
_BY_CHANNEL = "kimi-linear"


def recurrent_builds() -> Iterator[Build]:
    """Steps, prompts and commits of gated delta nets, Kimi's and Mamba-2, with all beside them."""
    spans = pointers("i64", "rings", "committed", "counts")
    rings = pointers("fp32", "ring_keys", "ring_corrected", "ring_decays")
    for name, sizes in RECURRENT_SIZES.items():
        constants = sizes | {
            "RING": 32,
            "BLOCK_K": triton.next_power_of_2(sizes["KEY_DIM"]),
            "BLOCK_V": COLUMNS_OF_MATRICES,
        }
        by_channel = {"BY_CHANNEL": name == _BY_CHANNEL}
        for due in (True, False):
            yield Build(
                name=f"delta_few {name}{' due' if due else ''}",
                kernel=delta_few_kernel,
                types=pointers("fp32", "queries", "keys", "values", "decays", "betas", "matrices")
                | pointers("i64", "slots", "starts", "ends")
                | pointers("fp32", "mixed", "corrected")
                | rings
                | spans
                | {"matrix_stride": "i64"}
                | dict.fromkeys(
                    ("ring_keys_stride", "ring_corrected_stride", "ring_decays_stride"), "i64"
                ),
                constants=constants | by_channel | {"CORRECTS": name != "mamba-2", "DUE": due},
                num_warps=WARPS_OF_MATRICES,
            )
        yield Build(
            name=f"delta_fold {name}",
            kernel=delta_fold_kernel,
            types=pointers("fp32", "matrices")
            | {"slots_ptr": "*i64"}
            | rings
            | spans
            | {"matrix_stride": "i64"},
            constants=constants | by_channel | {"LAYERS": 30},
            num_warps=WARPS_OF_MATRICES,
        )
        if name == _BY_CHANNEL:
            yield from _by_channel(sizes)
            continue
        for mixes in (True, False):
            yield Build(
                name=f"delta_chunks {name}{' mixes' if mixes else ''}",
                kernel=delta_chunks_kernel,
                types=pointers("fp32", "queries", "keys", "values", "decays", "turned_keys")
                | pointers("fp32", "matrices")
                | pointers("i64", "slots", "begins", "firsts", "lows", "highs")
                | pointers("fp32", "seen")
                | pointers("i64", "handed_in", "handed_at", "handed_to")
                | pointers("fp32", "mixed", "corrected", "handed")
                | {"matrix_stride": "i64"},
                constants=sizes
                | block_of(sizes["KEY_DIM"])
                | {"BLOCK_V": COLUMNS_OF_MATRICES, "CHUNK": CHUNK}
                | {"CORRECTS": name != "mamba-2" and not mixes, "MIXES": mixes},
                num_warps=CHUNK_WARPS,
                num_stages=CHUNK_STAGES,
            )
        yield Build(
            name=f"delta_within {name}",
            kernel=delta_within_kernel,
            types=pointers("fp32", "queries", "keys", "decays", "betas")
            | pointers("i64", "firsts", "lows", "highs")
            | pointers("fp32", "seen", "solved"),
            constants={part: constants[part] for part in ("KEY_HEADS", "VALUE_HEADS", "KEY_DIM")}
            | block_of(sizes["KEY_DIM"])
            | {"CHUNK": CHUNK, "CORRECTS": name != "mamba-2"},
            num_warps=WITHIN_WARPS,
        )
        if name != "mamba-2":
            yield Build(
                name=f"delta_turned {name}",
                kernel=delta_turned_kernel,
                types=pointers("fp32", "keys", "values", "decays", "betas")
                | pointers("i64", "firsts", "lows", "highs")
                | pointers("fp32", "solved", "turned_keys", "turned_values"),
                constants=sizes | {"BLOCK": TURNED_EACH, "CHUNK": CHUNK},
                num_warps=WITHIN_WARPS,
            )
    for taps in (3, 4):
        yield Build(
            name=f"short_conv {taps} taps",
            kernel=short_conv_kernel,
            types=pointers("bf16", "inputs")
            | pointers("fp32", "taps", "bias", "windows")
            | pointers("i64", "slots", "starts", "sequence_of")
            | pointers("bf16", "output")
            | {"channels": "i32", "window_stride": "i64"},
            constants={"TAPS": taps, "BIAS": taps == 4, "BLOCK": CHANNELS_EACH},
            num_warps=4,
        )
    yield from _shaping()
    yield from _moves()


def _by_channel(sizes: dict[str, int]) -> Iterator[Build]:
    """Prompts whose decays are by channel."""
    chunks = pointers("i64", "firsts", "lows", "highs")
    inputs = pointers("fp32", "queries", "keys", "values", "decays", "betas")
    between = pointers("fp32", "turned_keys", "asking", "behind", "left")
    yield Build(
        name=f"channel_within {_BY_CHANNEL}",
        kernel=channel_within_kernel,
        types=pointers("fp32", "queries", "keys", "decays", "betas")
        | chunks
        | pointers("fp32", "seen", "solved"),
        constants={part: sizes[part] for part in ("KEY_HEADS", "VALUE_HEADS", "KEY_DIM")}
        | {"BLOCK_K": triton.next_power_of_2(sizes["KEY_DIM"]), "CHUNK": CHUNK},
        num_warps=WITHIN_WARPS,
    )
    yield Build(
        name=f"channel_turned {_BY_CHANNEL}",
        kernel=channel_turned_kernel,
        types=inputs | chunks | pointers("fp32", "solved", "turned_values") | between,
        constants=sizes | {"BLOCK": COUNTED_EACH, "CHUNK": CHUNK},
        num_warps=WITHIN_WARPS,
    )
    yield Build(
        name=f"channel_handed {_BY_CHANNEL}",
        kernel=channel_handed_kernel,
        types=pointers("fp32", "keys", "decays", "corrected", "handed")
        | pointers("i64", "begins", "firsts", "lows", "handed_in", "handed_at", "handed_to"),
        constants=sizes
        | {"BLOCK": block_of(sizes["KEY_DIM"])["BLOCK_K"]}
        | {"BLOCK_V": COLUMNS_OF_MATRICES, "CHUNK": CHUNK},
        num_warps=CHUNK_WARPS,
    )
    for mixes in (True, False):
        yield Build(
            name=f"channel_chunks {_BY_CHANNEL}{' mixes' if mixes else ''}",
            kernel=channel_chunks_kernel,
            types=pointers("fp32", "values", "matrices", "seen")
            | between
            | chunks
            | pointers("i64", "slots", "begins", "handed_in", "handed_to")
            | pointers("fp32", "mixed", "corrected", "handed")
            | {"matrix_stride": "i64"},
            constants={part: sizes[part] for part in ("VALUE_HEADS", "KEY_DIM", "VALUE_DIM")}
            | block_of(sizes["KEY_DIM"])
            | {"BLOCK_V": COLUMNS_OF_MATRICES, "CHUNK": CHUNK, "MIXES": mixes},
            num_warps=CHUNK_WARPS,
            num_stages=CHUNK_STAGES,
        )


def _shaping() -> Iterator[Build]:
    yield Build(
        name="delta_shaping",
        kernel=delta_shaping_kernel,
        types=pointers("bf16", "convolved", "paces")
        | pointers("fp32", "rates", "bias", "queries", "keys", "values", "decays", "betas")
        | {"scale": "fp32"},
        constants=RECURRENT_SIZES["qwen3.5-35b"]
        | {"LEAST": LEAST_LENGTH, "BLOCK_K": 128, "BLOCK_V": 128},
        num_warps=WARPS,
    )
    yield Build(
        name="kimi_shaping",
        kernel=kimi_shaping_kernel,
        types=pointers("bf16", "convolved", "steps", "said")
        | pointers("fp32", "rates", "bias", "queries", "keys", "values", "decays", "betas")
        | {"steps_stride": "i64", "said_stride": "i64", "scale": "fp32"},
        constants={"LEAST": LEAST_LENGTH, "HEADS": 32, "HEAD_DIM": 128, "BLOCK": 128},
        num_warps=WARPS,
    )
    yield Build(
        name="mamba_shaping",
        kernel=mamba_shaping_kernel,
        types=pointers("bf16", "convolved", "steps")
        | pointers("fp32", "pace", "bias", "values", "taken", "keys", "queries", "decays")
        | {"steps_stride": "i64", "least_step": "fp32", "most_step": "fp32"},
        constants={"HEADS": 64, "GROUPS": 8, "HEAD_DIM": 64, "STATE_DIM": 128}
        | {"BLOCK_V": 64, "BLOCK_K": 128},
        num_warps=WARPS,
    )
    for size, first, by_sigmoid in (
        (128, False, False),
        (128, False, True),
        (512, True, False),
        (8192, True, False),
    ):
        way = " gate first" if first else " by sigmoid" if by_sigmoid else ""
        yield Build(
            name=f"gated_norm {size}{way}",
            kernel=gated_norm_kernel,
            types=pointers("fp32", "mixed", "values", "skip")
            | pointers("bf16", "gates")
            | pointers("fp32", "weight")
            | pointers("bf16", "output")
            | {"gate_stride": "i64", "weight_stride": "i32", "eps": "fp32"},
            constants={"SIZE": size, "HEAD_DIM": 64, "BLOCK": size}
            | {"GATE_FIRST": first, "BY_SIGMOID": by_sigmoid},
            num_warps=warps_of(size),
        )


def _moves() -> Iterator[Build]:
    places = pointers("i64", "rings", "places", "tokens")
    strides = dict.fromkeys(("first_stride", "second_stride", "third_stride"), "i64")
    kinds = {
        "inputs": ("bf16", "bf16", (8192, 0, 0)),
        "factors": ("fp32", "fp32", (2048, 4096, 32)),
        "factors by channel": ("fp32", "fp32", (4096, 4096, 4096)),
        "windows": ("bf16", "fp32", (8192, 0, 0)),
    }
    for name, (rows, rings, sizes) in kinds.items():
        yield Build(
            name=f"ring_write {name}",
            kernel=ring_write_kernel,
            types={
                f"{which}_{part}_ptr": f"*{kind}"
                for which in ("first", "second", "third")
                for part, kind in (("rows", rows), ("rings", rings))
            }
            | places
            | strides,
            constants=dict(zip(("FIRST", "SECOND", "THIRD"), sizes, strict=True))
            | {"BLOCK": NUMBERS_EACH},
            num_warps=4,
        )
    yield Build(
        name="move_windows",
        kernel=move_windows_kernel,
        types=pointers("fp32", "windows")
        | pointers("bf16", "rings")
        | pointers("i64", "slots", "ring_of", "committed", "counts")
        | {"channels": "i32", "window_stride": "i64", "ring_stride": "i64"},
        constants={"BEFORE": 3, "RING": 32, "BLOCK": CHANNELS_OF_WINDOWS},
        num_warps=4,
    )
