"""The gated delta rule (Yang et al. 2024, arXiv:2412.06464): a matrix for each head that forgets.

Of each token it takes up the difference between its value and what the matrix has for its key.

    S_t = exp(g_t) S_{t-1} + k_t u_t^T,    u_t = beta_t (v_t - exp(g_t) S_{t-1}^T k_t)
    o_t = S_t^T q_t

The decay g is one number for each head, or one for each number of its keys (Kimi Delta Attention,
``kernels.channel_delta``).

Keys, the corrected values u and the decays g of a few tokens, its *factors*, take a matrix from
before these tokens to any place among them (``fold``), so that a sequence can go back.

Chunks are cut at absolute multiples of ``CHUNK``, and matrices are folded at multiples of ``FOLD``:
where a step begins at one of these changes no bit. Matrices are in float32, or in float64 for a
float64 model, and everything else is computed in their type.
"""

import ctypes
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kernels.channel_delta import chunk_by_channel, left_behind
from kernels.delta_rows import CHUNK, DeltaRows, DeltaSpans
from kernels.dispatch import triton_kernels
from kernels.native_arguments import DeltaArgs, DeltaFoldArgs
from kernels.native_library import NativeLibrary, native_library
from kernels.upload import upload

FOLD: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaInputs:
    """Inputs of a step's tokens, in the dtype of matrices: K heads of keys, each of which serves V
    / K neighbouring heads of values."""

    queries: Tensor
    """[T, K, key_dim], scaled."""
    keys: Tensor
    """[T, K, key_dim]"""
    values: Tensor
    """[T, V, value_dim]"""
    decays: Tensor
    """[T, V], or [T, V, key_dim] by channel: logarithms, at most 0."""
    betas: Tensor | None
    """[T, V]; None, which is not by channel: values are taken up as they are
    (``kernels.mamba2``)."""

    @property
    def by_channel(self) -> bool:
        """Whether each number of a key decays on its own."""
        return self.decays.dim() == 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOutputs:
    """Results for a step's tokens, and the matrices that are handed out."""

    mixed: Tensor
    """[T, V, value_dim]"""
    corrected: Tensor
    """[T, V, value_dim]: of the factors, what is not among the inputs."""
    handed: Tensor
    """[M, V, key_dim, value_dim]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRings:
    """The factors of the last tokens, for each running sequence and layer, each in the place of its
    position."""

    keys: Tensor
    """[rings, layers, ring, K, key_dim]"""
    corrected: Tensor
    """[rings, layers, ring, V, value_dim]"""
    decays: Tensor
    """[rings, layers, ring, V], or with key_dim behind"""

    @property
    def by_channel(self) -> bool:
        """Whether each number of a key decays on its own."""
        return self.decays.dim() == 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaDue:
    """Tokens by which the matrices of a step's sequences are taken on, in place, before they are
    read: a decode so reads and writes each matrix once."""

    matrices: Tensor
    """[slots, layers, V, key_dim, value_dim]"""
    rings: DeltaRings
    spans: DeltaSpans
    """One for each sequence of the step; those of 0 tokens leave a matrix as it is."""
    layer: int


def gated_delta_reference(inputs: DeltaInputs, matrices: Tensor, rows: DeltaRows) -> DeltaOutputs:
    """Token by token.

    Args:
        inputs: of the step's tokens.
        matrices: [slots, V, key_dim, value_dim] before them; not changed.
        rows: whose they are.
    """
    shared = inputs.values.shape[1] // inputs.keys.shape[1]
    queries = inputs.queries.repeat_interleave(shared, 1)
    keys = inputs.keys.repeat_interleave(shared, 1)
    mixed, corrected = torch.empty_like(inputs.values), torch.empty_like(inputs.values)
    wanted, handed = dict(rows.handed), []
    for sequence, slot in enumerate(rows.slots.tolist()):
        state, span = matrices[slot].clone(), rows.tokens(sequence)
        for token in range(span.start, span.stop):
            state = state * _over_matrices(inputs.decays[token].exp(), by_channel=inputs.by_channel)
            difference = inputs.values[token]
            if inputs.betas is not None:
                known = (state * keys[token][:, :, None]).sum(1)
                difference = (difference - known) * inputs.betas[token][:, None]
            state = state + keys[token][:, :, None] * difference[:, None, :]
            corrected[token] = difference
            mixed[token] = (state * queries[token][:, :, None]).sum(1)
            if wanted.get(sequence) == token - span.start + 1:
                handed.append(state.clone())
    return DeltaOutputs(mixed=mixed, corrected=corrected, handed=_stacked(handed, matrices))


def _over_matrices(kept: Tensor, *, by_channel: bool) -> Tensor:
    """[..., V] or [..., V, key_dim] as factors of matrices [..., V, key_dim, value_dim]."""
    return kept[..., None] if by_channel else kept[..., None, None]


def gated_delta(
    inputs: DeltaInputs, matrices: Tensor, rows: DeltaRows, due: DeltaDue | None = None
) -> DeltaOutputs:
    """See ``gated_delta_reference``.

    Args:
        inputs: of the step's tokens.
        matrices: [slots, V, key_dim, value_dim] of one layer.
        rows: whose they are.
        due: by what these matrices are taken on first, as by ``fold_rings``; None: they are where
            the step begins.
    """
    gpu = triton_kernels("delta_steps", matrices)
    if gpu is not None:
        outputs: DeltaOutputs = gpu.gated_delta(inputs, matrices, rows, due)
        return outputs
    library = _compiled(matrices)
    if library is None:
        if due is not None:
            fold_rings_reference(*_of_layer(due))
        return gated_delta_chunked(inputs, matrices, rows)
    given = (inputs.queries, inputs.keys, inputs.values, inputs.decays)
    queries, keys, values, decays = (each.contiguous() for each in given)
    betas = None if inputs.betas is None else inputs.betas.contiguous()
    mixed, corrected = torch.empty_like(values), torch.empty_like(values)
    handed = matrices.new_empty(len(rows.handed), *matrices.shape[1:])
    places = np.zeros((2, len(rows.slots)), dtype=np.int64)
    for number, (sequence, place) in enumerate(rows.handed):
        places[:, sequence] = place, number
    library.gated_delta(
        DeltaArgs(
            queries=queries.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            decays=decays.data_ptr(),
            betas=None if betas is None else betas.data_ptr(),
            matrices=matrices.data_ptr(),
            slots=rows.slots.ctypes.data,
            starts=rows.starts.ctypes.data,
            positions=rows.positions.ctypes.data,
            handed_at=places[0].ctypes.data,
            handed_to=places[1].ctypes.data,
            mixed=mixed.data_ptr(),
            corrected=corrected.data_ptr(),
            handed=handed.data_ptr(),
            due=None
            if due is None
            else ctypes.pointer(_fold_args(due.matrices, due.rings, due.spans)),
            layer=0 if due is None else due.layer,
            sequences=len(rows.slots),
            key_heads=keys.shape[1],
            value_heads=values.shape[1],
            key_dim=keys.shape[2],
            value_dim=values.shape[2],
            slot_stride=matrices.stride(0),
            by_channel=inputs.by_channel,
        )
    )
    return DeltaOutputs(mixed=mixed, corrected=corrected, handed=handed)


def folds_apart(matrices: Tensor) -> bool:
    """Whether ``gated_delta`` takes matrices on in a pass of its own before their tokens, and can
    fail between the two: whoever has to know asks for one by ``fold_layer`` first."""
    return triton_kernels("delta_steps", matrices) is None and _compiled(matrices) is None


def _compiled(matrices: Tensor) -> NativeLibrary | None:
    """The kernels for these matrices, each of which lies in one piece."""
    if matrices.device.type != "cpu" or matrices.dtype != torch.float32:
        return None
    return native_library(torch.float32)


def gated_delta_chunked(inputs: DeltaInputs, matrices: Tensor, rows: DeltaRows) -> DeltaOutputs:
    """``gated_delta_reference`` chunk by chunk."""
    mixed, corrected = torch.empty_like(inputs.values), torch.empty_like(inputs.values)
    wanted, handed = dict(rows.handed), []
    for sequence, slot in enumerate(rows.slots.tolist()):
        span, state = rows.tokens(sequence), matrices[slot]
        position, place = int(rows.positions[sequence]), wanted.get(sequence)
        low = span.start
        while low < span.stop:
            at = position + low - span.start
            high = min(span.stop, low + CHUNK - at % CHUNK)
            within = None if place is None else span.start + place
            found = _chunk(inputs, slice(low, high), state, mixed, corrected)
            if within is not None and low < within <= high:
                handed.append(_advanced(found, state, at, within - low))
            if high < span.stop:
                state = _advanced(found, state, at, high - low)
            low = high
    return DeltaOutputs(mixed=mixed, corrected=corrected, handed=_stacked(handed, matrices))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factors:
    """Factors of some tokens in a row."""

    keys: Tensor
    """[n, K, key_dim]"""
    corrected: Tensor
    """[n, V, value_dim]"""
    decays: Tensor
    """[n, V], or [n, V, key_dim]"""


def _chunk(
    inputs: DeltaInputs, span: slice, state: Tensor, mixed: Tensor, corrected: Tensor
) -> _Factors:
    """Mix the tokens of one chunk, in ``state`` [V, key_dim, value_dim] before them."""
    keys, values = inputs.keys[span], inputs.values[span]
    heads, shared = values.shape[1], values.shape[1] // keys.shape[1]
    decays = inputs.decays[span]
    if inputs.by_channel:
        assert inputs.betas is not None
        of_keys = inputs.queries[span], keys
        queries, own = (each.repeat_interleave(shared, 1).transpose(0, 1) for each in of_keys)
        of_chunk = chunk_by_channel(
            own,
            queries,
            values.transpose(0, 1),
            state,
            decays=decays.transpose(0, 1),
            betas=inputs.betas[span].T,
        )
        mixed[span], corrected[span] = (each.transpose(0, 1) for each in of_chunk)
        return _Factors(keys=keys, corrected=corrected[span], decays=decays)
    by_head = keys.transpose(0, 1).contiguous()
    queries = inputs.queries[span].transpose(0, 1).contiguous()
    reach = decays.T.cumsum(1)
    between = reach[:, :, None] - reach[:, None, :]
    lower = torch.ones_like(between[0]).tril().bool()
    between = between.masked_fill(~lower, -torch.inf).exp()
    seen = (queries @ by_head.mT).repeat_interleave(shared, 0)
    before = reach.exp()[:, :, None]
    grouped = state.view(keys.shape[1], shared, *state.shape[1:])
    old = before * (queries[:, None] @ grouped).view(heads, len(keys), -1)
    found = values.transpose(0, 1)
    if inputs.betas is not None:
        betas = inputs.betas[span].T[:, :, None]
        alike = (by_head @ by_head.mT).repeat_interleave(shared, 0)
        known = before * (by_head[:, None] @ grouped).view(heads, len(keys), -1)
        system = (betas * between * alike).tril(-1)
        system = system + torch.eye(len(keys), dtype=system.dtype, device=system.device)
        found = torch.linalg.solve_triangular(
            system, betas * (found - known), upper=False, unitriangular=True
        )
    mixed[span] = (old + (between * seen) @ found).transpose(0, 1)
    corrected[span] = found.transpose(0, 1)
    return _Factors(keys=keys, corrected=corrected[span], decays=decays)


def _advanced(factors: _Factors, state: Tensor, at: int, count: int) -> Tensor:
    """``state``, which is at position ``at``, behind ``count`` of the chunk's tokens."""
    low = 0
    while low < count:
        high = min(count, low + FOLD - (at + low) % FOLD)
        state = fold(
            state[None],
            factors.keys[None, low:high],
            factors.corrected[None, low:high],
            factors.decays[None, low:high],
        )[0]
        low = high
    return state


def fold(matrices: Tensor, keys: Tensor, corrected: Tensor, decays: Tensor) -> Tensor:
    """Take matrices behind some tokens.

    Args:
        matrices: [N, V, key_dim, value_dim], not changed.
        keys: [N, n, K, key_dim] of the tokens, and so on: their factors.
        corrected: [N, n, V, value_dim]
        decays: [N, n, V], or [N, n, V, key_dim]
    """
    many, heads, key_dim, value_dim = matrices.shape
    shared, by_channel = heads // keys.shape[2], decays.dim() == 4
    if by_channel:
        weights, whole = left_behind(decays)
    else:
        reach = decays.cumsum(1)
        last = reach[:, -1]
        weights, whole = (last[:, None] - reach).exp()[..., None], last.exp()
    keys = keys.repeat_interleave(shared, 2) * weights
    added = keys.permute(0, 2, 3, 1).reshape(-1, key_dim, keys.shape[1])
    corrected = corrected.permute(0, 2, 1, 3).reshape(-1, keys.shape[1], value_dim)
    added = (added @ corrected).view(many, heads, key_dim, value_dim)
    return _over_matrices(whole, by_channel=by_channel) * matrices + added


def fold_rings(matrices: Tensor, rings: DeltaRings, spans: DeltaSpans) -> None:
    """``fold`` of all layers by what is in rings, in place; at most ``FOLD`` tokens each.

    Args:
        matrices: [slots, layers, V, key_dim, value_dim].
        rings: of those that run.
        spans: which, and how far.
    """
    gpu = triton_kernels("delta", matrices)
    if gpu is not None:
        gpu.fold_rings(matrices, rings, spans)
        return None
    library = _compiled(matrices)
    if library is None:
        return fold_rings_reference(matrices, rings, spans)
    library.delta_fold(_fold_args(matrices, rings, spans))
    return None


def fold_layer(due: DeltaDue) -> None:
    """Take on the matrices of one layer as ``gated_delta`` does before its tokens, without any."""
    keys, values = due.rings.keys[0, 0, :0], due.rings.corrected[0, 0, :0]
    decays, betas = due.rings.decays[0, 0, :0], values[..., 0]
    nothing = DeltaInputs(queries=keys, keys=keys, values=values, decays=decays, betas=betas)
    slots = due.spans.slots
    rows = DeltaRows(
        slots=slots, starts=np.zeros(len(slots) + 1, dtype=np.int64), positions=due.spans.committed
    )
    gated_delta(nothing, due.matrices[:, due.layer], rows, due)


def _fold_args(matrices: Tensor, rings: DeltaRings, spans: DeltaSpans) -> DeltaFoldArgs:
    return DeltaFoldArgs(
        matrices=matrices.data_ptr(),
        keys=rings.keys.data_ptr(),
        corrected=rings.corrected.data_ptr(),
        decays=rings.decays.data_ptr(),
        slots=spans.slots.ctypes.data,
        rings=spans.rings.ctypes.data,
        committed=spans.committed.ctypes.data,
        counts=spans.counts.ctypes.data,
        sequences=len(spans.slots),
        layers=matrices.shape[1],
        ring=rings.keys.shape[2],
        key_heads=rings.keys.shape[3],
        value_heads=matrices.shape[2],
        key_dim=matrices.shape[3],
        value_dim=matrices.shape[4],
        slot_stride=matrices.stride(0),
        by_channel=rings.by_channel,
    )


def _of_layer(due: DeltaDue) -> tuple[Tensor, DeltaRings, DeltaSpans]:
    """What ``fold_rings`` takes, of one layer."""
    one, rings = slice(due.layer, due.layer + 1), due.rings
    of_one = DeltaRings(
        keys=rings.keys[:, one], corrected=rings.corrected[:, one], decays=rings.decays[:, one]
    )
    return due.matrices[:, one], of_one, due.spans


def fold_rings_reference(matrices: Tensor, rings: DeltaRings, spans: DeltaSpans) -> None:
    """See ``fold_rings``: those that go equally far together."""
    device, size = matrices.device, rings.keys.shape[2]
    for count in set(spans.counts.tolist()) - {0}:
        chosen = spans.counts == count
        there = upload(spans.slots[chosen], device)
        ring = upload(spans.rings[chosen], device)[:, None]
        places = (spans.committed[chosen][:, None] + np.arange(count)) % size
        place, old = upload(places, device), matrices[there]
        keys, corrected, decays = (
            kept[ring, :, place].transpose(1, 2).flatten(0, 1)
            for kept in (rings.keys, rings.corrected, rings.decays)
        )
        matrices[there] = fold(old.flatten(0, 1), keys, corrected, decays).view_as(old)


def _stacked(handed: list[Tensor], matrices: Tensor) -> Tensor:
    return torch.stack(handed) if handed else matrices[:0]
