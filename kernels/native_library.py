"""The CPU kernels of ``kernels/native``, compiled for this machine when first needed.

Plain C++, no headers but the compiler's own; a few seconds, once, then the result is kept in
the user's cache folder under a name made of source, compiler and processor.
Without a compiler, or with ``KEEPWARM_NATIVE=0``, there is no library and the torch versions
run: slower at long contexts, otherwise the same.

Threads are those of torch: both use the one OpenMP library that torch brings along.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from kernels.large_pages import Slabs
from kernels.native_arguments import (
    AttendArgs,
    DeltaArgs,
    DeltaFoldArgs,
    DeltaShapingArgs,
    GatedNormArgs,
    IndexScoresArgs,
    KimiShapingArgs,
    LinearArgs,
    LowRankArgs,
    PackArgs,
    QkvArgs,
    RingWriteArgs,
    ShortConvArgs,
    TiledWeights,
    WeightKind,
    WindowArgs,
)
from kernels.paged_layout import PagedLayout

_LOG = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "native"
"""The folder of the C++ kernels."""
FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math"),  # loops with an exponential or a choice in vectors
)
"""Flags for the C++ compiler."""
_TILE = 16
_ROUNDED: dict[int, WeightKind] = {16: "16", 8: "8", 4: "4"}
"""The result of ``pack``."""
_KINDS: tuple[WeightKind, ...] = get_args(WeightKind)
_COMPILE_TIMEOUT_S = 120
_SUFFIXES = {torch.bfloat16: "bf16", torch.float32: "f32"}


class NativeLibrary:
    """The compiled kernels for one dtype. All tensors are on the CPU and of that dtype."""

    def __init__(self, library: ctypes.CDLL, suffix: str) -> None:
        self._attend = getattr(library, f"keepwarm_attend_{suffix}")
        self._attend_int8 = getattr(library, f"keepwarm_attend_{suffix}_int8")
        self._attend_blocked = library.keepwarm_attend_blocked
        self._attend_blocked_int8 = library.keepwarm_attend_blocked_int8
        blocked = (self._attend_blocked, self._attend_blocked_int8)
        self._has_blocked = suffix == "bf16" and bool(library.keepwarm_has_attend_blocked())
        for attend in (self._attend, self._attend_int8, *blocked):
            attend.argtypes = (ctypes.POINTER(AttendArgs),)
        self._write_int8 = getattr(library, f"keepwarm_write_int8_{suffix}")
        self._write_int8.argtypes = (*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 4)
        self._norm_rope_write = getattr(library, f"keepwarm_norm_rope_write_{suffix}")
        self._norm_rope_write.argtypes = (ctypes.POINTER(QkvArgs),)
        self._add_rms_norm = getattr(library, f"keepwarm_add_rms_norm_{suffix}")
        sizes = (ctypes.c_int64, ctypes.c_int64)
        self._add_rms_norm.argtypes = (*[ctypes.c_void_p] * 5, *sizes, ctypes.c_float)
        self._silu_mul = getattr(library, f"keepwarm_silu_mul_{suffix}")
        self._silu_mul.argtypes = (ctypes.c_void_p, ctypes.c_void_p, *sizes)
        self._visible_softmax = getattr(library, f"keepwarm_visible_softmax_{suffix}")
        self._visible_softmax.argtypes = (ctypes.c_void_p, *[ctypes.c_int64] * 5)
        self.index_scores = getattr(library, f"keepwarm_index_scores_{suffix}")
        """See ``kernels.token_choice``; the dtype is that of keys."""
        self.index_scores.argtypes = (ctypes.POINTER(IndexScoresArgs),)
        self.low_rank = getattr(library, f"keepwarm_low_rank_{suffix}")
        """See ``kernels.low_rank``."""
        self.low_rank.argtypes = (ctypes.POINTER(LowRankArgs),)
        self._bind_recurrent(library, suffix)
        self._slabs = Slabs()
        self._linear: dict[WeightKind, Any] = {}
        self._widen: dict[WeightKind, Any] = {}
        self._pack: dict[WeightKind, Any] = {}
        self._tiles: dict[WeightKind, Any] = {}
        self.kinds_for_many_rows: frozenset[WeightKind] = frozenset()
        """The kinds of weights with which our products are as fast as torch's for any number of
        rows: all where torch has no matrix unit, those that ours takes as they lie where there is
        one."""
        if suffix == "bf16" and library.keepwarm_has_linear():
            matrix_unit = bool(library.keepwarm_has_matrix_unit())
            narrow = [kind for kind in _KINDS if kind != "16"] if matrix_unit else []
            self._linear, self._widen, self._pack, self._tiles = (
                {kind: getattr(library, f"keepwarm_{name}_{kind}") for kind in kinds}
                for name, kinds in (
                    ("linear", _KINDS),
                    ("widen", _KINDS),
                    ("pack", _ROUNDED.values()),
                    ("tiles", narrow),
                )
            )
            amx = "amx_bf16" in _processor().split()
            ours: set[WeightKind] = {"16"} if matrix_unit else set()
            self.kinds_for_many_rows = frozenset(ours if amx else _KINDS)
            self.run_layers = library.keepwarm_run_layers
            """See ``kernels.native_layers``; only where ``has_linear`` holds."""
            self.run_layers.restype = None
            for function in (*self._linear.values(), *self._widen.values(), *self._tiles.values()):
                function.argtypes = (ctypes.POINTER(LinearArgs),)
            for function in self._pack.values():
                function.argtypes = (ctypes.POINTER(PackArgs),)
        for function in (
            *self._linear.values(),
            *self._widen.values(),
            *self._pack.values(),
            *self._tiles.values(),
            self._attend,
            self._attend_int8,
            *blocked,
            self._write_int8,
            self._norm_rope_write,
            self._add_rms_norm,
            self._silu_mul,
            self._visible_softmax,
            self.index_scores,
            self.low_rank,
        ):
            function.restype = None

    def _bind_recurrent(self, library: ctypes.CDLL, suffix: str) -> None:
        """The kernels of recurrent layers."""
        self.short_conv = getattr(library, f"keepwarm_short_conv_{suffix}")
        """See ``kernels.short_conv``."""
        self.short_conv.argtypes = (ctypes.POINTER(ShortConvArgs),)
        self.gated_delta = library.keepwarm_gated_delta
        self.delta_fold = library.keepwarm_delta_fold
        """See ``kernels.gated_delta``; both compute in float32, whatever the dtype."""
        self.gated_delta.argtypes = (ctypes.POINTER(DeltaArgs),)
        self.delta_fold.argtypes = (ctypes.POINTER(DeltaFoldArgs),)
        self.delta_shaping = getattr(library, f"keepwarm_delta_shaping_{suffix}")
        """See ``kernels.delta_shaping``."""
        self.delta_shaping.argtypes = (ctypes.POINTER(DeltaShapingArgs),)
        self.kimi_shaping = getattr(library, f"keepwarm_kimi_shaping_{suffix}")
        """See ``kernels.kimi_shaping``."""
        self.kimi_shaping.argtypes = (ctypes.POINTER(KimiShapingArgs),)
        self.gated_norm = getattr(library, f"keepwarm_gated_norm_{suffix}")
        """See ``kernels.gated_norm``."""
        self.gated_norm.argtypes = (ctypes.POINTER(GatedNormArgs),)
        self.ring_write = library.keepwarm_ring_write
        """See ``kernels.ring_write``; for rows of any dtype."""
        self.ring_write.argtypes = (ctypes.POINTER(RingWriteArgs), ctypes.c_int64)
        self.ring_write.restype = ctypes.c_int64
        self.move_windows = getattr(library, f"keepwarm_move_windows_{suffix}")
        """See ``kernels.conv_windows``; the dtype is that of rings."""
        self.move_windows.argtypes = (ctypes.POINTER(WindowArgs),)
        self.move_windows.restype = ctypes.c_bool
        rules = self.gated_delta, self.delta_fold
        shapings = self.delta_shaping, self.kimi_shaping
        for function in (*rules, *shapings, self.short_conv, self.gated_norm):
            function.restype = None

    @property
    def has_linear(self) -> bool:
        """Whether ``linear`` and ``widened`` may be called."""
        return bool(self._linear)

    def attend(
        self,
        queries: Tensor,
        k_blocks: Tensor,
        v_blocks: Tensor,
        output: Tensor,
        layout: PagedLayout,
        *,
        scale: float,
        window: int | None,
        sinks: Tensor | None,
        max_queries: int,
    ) -> None:
        """``paged_attention_reference`` into ``output``, for the sequences of up to
        ``max_queries`` query tokens; rows of the others are left alone, unless
        ``attends_any``."""
        _, kv_heads, block_size, _ = k_blocks.shape
        head_dim = queries.shape[2]
        if self.attends_any(head_dim, k_blocks):
            ways = self._attend_blocked, self._attend_blocked_int8
        else:
            ways = self._attend, self._attend_int8
        attend = ways[k_blocks.dtype == torch.int8]
        if queries.stride()[1:] != (head_dim, 1):
            queries = queries.contiguous()
        attend(
            AttendArgs(
                queries=queries.data_ptr(),
                keys=k_blocks.data_ptr(),
                values=v_blocks.data_ptr(),
                output=output.data_ptr(),
                block_tables=layout.block_tables.data_ptr(),
                query_starts=layout.query_starts.data_ptr(),
                context_lengths=layout.context_lengths.data_ptr(),
                query_stride=queries.stride(0),
                table_stride=layout.block_tables.stride(0),
                sequences=layout.context_lengths.numel(),
                heads=queries.shape[1],
                kv_heads=kv_heads,
                head_dim=head_dim,
                block_size=block_size,
                row_stride=k_blocks.stride(2),
                window=window or 0,
                max_queries=max_queries,
                scale=scale,
                sinks=None if sinks is None else sinks.data_ptr(),
            )
        )

    def attends_any(self, head_dim: int, blocks: Tensor | None = None) -> bool:
        """Whether ``attend`` takes sequences of any number of query tokens; ``blocks``: those that
        are attended to, where rows may have more in them than that."""
        in_a_row = blocks is None or blocks.is_contiguous()
        return self._has_blocked and in_a_row and head_dim % 32 == 0 and head_dim <= 256

    def norm_rope_write(
        self,
        qkv: Tensor,
        *,
        norm_weight: Tensor | None,
        eps: float,
        rotation: tuple[Tensor, Tensor],
        blocks: tuple[Tensor, Tensor],
        slots: Tensor,
    ) -> Tensor:
        """``kernels.qkv.norm_rope_write_reference``."""
        tokens, all_heads, head_dim = qkv.shape
        keys, values = blocks
        heads = all_heads - 2 * keys.shape[1]
        queries = qkv.new_empty(tokens, heads, head_dim)
        cosines, sines = rotation
        self._norm_rope_write(
            QkvArgs(
                qkv=qkv.data_ptr(),
                norm_weight=None if norm_weight is None else norm_weight.data_ptr(),
                cosines=cosines.data_ptr(),
                sines=sines.data_ptr(),
                slots=slots.data_ptr(),
                queries=queries.data_ptr(),
                keys=keys.data_ptr(),
                values=values.data_ptr(),
                tokens=tokens,
                heads=heads,
                kv_heads=keys.shape[1],
                head_dim=head_dim,
                block_size=keys.shape[2],
                eps=eps,
            )
        )
        return queries

    def norm_rope_write_int8(
        self,
        qkv: Tensor,
        *,
        norm_weight: Tensor | None,
        eps: float,
        rotation: tuple[Tensor, Tensor],
        blocks: tuple[Tensor, Tensor],
        slots: Tensor,
    ) -> Tensor:
        """``kernels.qkv.norm_rope_write_reference`` into int8 blocks."""
        tokens, _, head_dim = qkv.shape
        kv_heads = blocks[0].shape[1]
        new = qkv.new_empty(2, 1, kv_heads, tokens, head_dim)
        queries = self.norm_rope_write(
            qkv,
            norm_weight=norm_weight,
            eps=eps,
            rotation=rotation,
            blocks=(new[0], new[1]),
            slots=torch.arange(tokens),
        )
        for rows, pool in zip(new, blocks, strict=True):
            self.write_int8(rows[0], slots, pool)
        return queries

    def write_int8(self, rows: Tensor, slots: Tensor, blocks: Tensor) -> None:
        """Put ``rows`` [kv_heads, tokens, head_dim], contiguous, into int8 ``blocks`` as
        ``kernels.quantised_kv`` keeps them."""
        kv_heads, tokens, head_dim = rows.shape
        sizes = (tokens, kv_heads, head_dim, blocks.shape[2])
        self._write_int8(rows.data_ptr(), slots.data_ptr(), blocks.data_ptr(), *sizes)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """``kernels.norm.add_rms_norm_reference``."""
        normed, total = torch.empty_like(x), torch.empty_like(x)
        self._add_rms_norm(
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            normed.data_ptr(),
            total.data_ptr(),
            x.shape[0],
            x.shape[1],
            eps,
        )
        return normed, total

    def visible_softmax_(
        self, scores: Tensor, *, num_queries: int, first_end: int, window: int | None
    ) -> Tensor:
        """Softmax over what each query sees, in place, zero elsewhere; returns ``scores``.

        ``scores`` is [..., num_queries, columns], contiguous; query i sees the columns below
        ``first_end`` + i, the last ``window`` of them. All are zero if that is none.
        """
        columns = scores.shape[-1]
        rows = scores.numel() // columns
        self._visible_softmax(scores.data_ptr(), rows, columns, num_queries, first_end, window or 0)
        return scores

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """``kernels.activation.silu_mul_reference``."""
        tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
        output = gate_up.new_empty(tokens, size)
        self._silu_mul(gate_up.data_ptr(), output.data_ptr(), tokens, size)
        return output

    def pack(self, weight: Tensor, bits: Literal[16, 8, 4], group: int) -> TiledWeights:
        """Lay out a matrix [outputs, inputs] in bfloat16, quantised to 8 or 4 bits or as it is.

        The rounding is that of ``kernels.quant_matmul.quantise_reference``.
        """
        outputs, inputs = weight.shape
        tiles = -(-outputs // _TILE)
        values = self.room(tiles * _TILE * inputs * bits // 8)
        groups = {16: 0, 8: 1, 4: inputs // group}[bits]
        scales = torch.zeros(tiles, groups, _TILE)
        weight = weight.contiguous()
        kind = _ROUNDED[bits]
        self._pack[kind](
            PackArgs(
                weight=weight.data_ptr(),
                tiles=values.data_ptr(),
                scales=scales.data_ptr(),
                inputs=inputs,
                outputs=outputs,
                group=group,
            )
        )
        return TiledWeights(
            kind=kind,
            values=values,
            scales=scales,
            outputs=outputs,
            inputs=inputs,
            group=group,
        )

    def room(self, num_bytes: int) -> Tensor:
        """uint8: where tiles are kept."""
        return self._slabs.take(num_bytes)

    def product_of(self, kind: WeightKind) -> int:
        """The address of what multiplies weights of a kind, for ``run_layers``."""
        return ctypes.cast(self._linear[kind], ctypes.c_void_p).value or 0

    def linear(self, x: Tensor, matrix: TiledWeights) -> Tensor:
        """``x`` [rows, inputs] times the transposed matrix."""
        output = x.new_empty(x.shape[0], matrix.outputs)
        x = x.contiguous()
        self._linear[matrix.kind](self._linear_args(x, matrix, output))
        return output

    def widened(self, matrix: TiledWeights) -> Tensor:
        """The matrix in bfloat16, [outputs, inputs]; inputs must be a multiple of 32."""
        output = torch.empty(matrix.outputs, matrix.inputs, dtype=torch.bfloat16)
        self._widen[matrix.kind](self._linear_args(None, matrix, output))
        return output

    def linear_of_many(self, x: Tensor, matrix: TiledWeights) -> Tensor:
        """A product of many rows, by the matrix in bfloat16, laid out for this product alone."""
        lay_out = self._tiles.get(matrix.kind)
        if lay_out is None:
            return functional.linear(x, self.widened(matrix))
        tiles = torch.empty(
            -(-matrix.outputs // _TILE) * _TILE * matrix.inputs * 2, dtype=torch.uint8
        )
        lay_out(self._linear_args(None, matrix, tiles))
        return self.linear(x, replace(matrix, kind="16", values=tiles, zeros=None))

    @staticmethod
    def _linear_args(x: Tensor | None, matrix: TiledWeights, output: Tensor) -> LinearArgs:
        args = LinearArgs.from_buffer_copy(matrix.arguments)
        args.output = output.data_ptr()
        if x is not None:
            args.x, args.rows = x.data_ptr(), x.shape[0]
        return args


@functools.lru_cache
def native_library(dtype: torch.dtype) -> NativeLibrary | None:
    """The compiled kernels for ``dtype``; None where torch has to do. Compiles at first."""
    if dtype not in _SUFFIXES:
        return None
    library = compiled_library()
    return None if library is None else NativeLibrary(library, _SUFFIXES[dtype])


@functools.lru_cache
def compiled_library() -> ctypes.CDLL | None:
    """The compiled kernels; None where there is no compiler or they are not to be used."""
    if os.environ.get("KEEPWARM_NATIVE", "1") == "0":
        return None
    try:
        return ctypes.CDLL(str(_compiled()))
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        _LOG.warning("CPU kernels not compiled, torch does their work: %s", str(detail)[-500:])
        return None


def own_threads(threads: int | None) -> None:
    """Have the compiled kernels of this process share their work among so many threads of their
    own, of which none waits for one that has not begun (``native/team.h``); None: among OpenMP's,
    as many as torch has, which is how they begin. Beside torch's threads at work theirs have no
    core: where there are some of their own, torch should have one."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}, at least 1 is needed")
    if threads is None and not compiled_library.cache_info().currsize:
        return  # nothing compiled: nothing to undo
    library = compiled_library()
    if library is not None:
        library.keepwarm_own_threads(ctypes.c_int64(threads or 0))


def build_name() -> str:
    """The name of a build of the compiled kernels: another one for other sources, another compiler
    or processor."""
    library = compiled_library()
    return "none" if library is None else Path(library._name).stem


def _compiled() -> Path:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None or platform.system() != "Linux":
        raise OSError("no C++ compiler (c++, g++ or $CXX) on this machine")
    version = subprocess.run(
        [compiler, "--version"], check=True, capture_output=True, text=True, timeout=10
    ).stdout
    key = hashlib.sha256(repr((compiler, version, FLAGS, _processor())).encode())
    for path in sorted(SOURCES.iterdir()):
        key.update(path.read_bytes())
    home = os.path.expanduser("~")
    home = "/" if home == "~" else home  # a user whom the system does not know
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "keepwarm"
    target = cache / f"cpu_kernels-{key.hexdigest()[:20]}.so"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _LOG.info("compiling the CPU kernels, once for this machine; it takes up to a minute")
            _compile(compiler, Path(folder)).replace(target)
    return target


def _compile(compiler: str, folder: Path) -> Path:
    """The library, made in ``folder``; as many sources at a time as there are cores."""

    def run(*arguments: str) -> None:
        command = [compiler, *FLAGS, *arguments]
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S
        )

    made = {path: folder / f"{path.stem}.o" for path in sorted(SOURCES.glob("*.cpp"))}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(lambda path: run("-c", str(path), "-o", str(made[path])), made))
    library = folder / "made.so"
    run("-shared", *map(str, made.values()), "-o", str(library))
    return library


def _processor() -> str:
    """The processor's features on which ``-march=native`` depends."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {flags}"
