"""Attention over compressed entries and several residual streams, as the reference engine computes
them: window by window and query by query, from the whole transcript."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from runtime.model.compressed import Compressed
from runtime.model.config import ModelConfig
from tests.support.reference_rope import rotate


class Weights(Protocol):
    config: ModelConfig

    def get(self, name: str, *shape: int) -> Tensor: ...


def turned(x: Tensor, spec: Compressed, positions: Sequence[int], back: bool = False) -> Tensor:
    """[tokens, heads, dim] with the last dimensions rotated, whose pairs are neighbours."""
    if not len(x):
        return x
    plain, tail = x[..., : x.shape[-1] - spec.rotary_dim], x[..., -spec.rotary_dim :]
    halves = torch.cat((tail[..., 0::2], tail[..., 1::2]), -1)
    each = torch.zeros(max(positions) + 1, *halves.shape[1:], dtype=x.dtype)
    each[list(positions)] = halves if not back else halves * _conjugate(spec.rotary_dim)
    halves = rotate(each, spec.rope)[list(positions)]
    halves = halves if not back else halves * _conjugate(spec.rotary_dim)
    first, second = halves.chunk(2, -1)
    return torch.cat((plain, torch.stack((first, second), -1).flatten(-2)), -1)


def _conjugate(size: int) -> Tensor:
    """Turning the conjugate and conjugating again is turning back."""
    return torch.cat((torch.ones(size // 2), -torch.ones(size // 2))).double()


def _normed(x: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def _entries(weights: Weights, spec: Compressed, name: str, x: Tensor, size: int) -> Tensor:
    """[windows, size]"""
    ratio, hidden, eps = spec.ratio, x.shape[1], weights.config.norm_eps
    series = 1 if spec.indexer is None else 2
    values = x @ weights.get(f"{name}.kv_proj.weight", series * size, hidden).T
    gates = x @ weights.get(f"{name}.gate_proj.weight", series * size, hidden).T
    bias = weights.get(f"{name}.position_bias", ratio, series * size)
    scale = weights.get(f"{name}.kv_norm.weight", size)
    made = []
    for window in range(len(x) // ratio):
        own = range(window * ratio, (window + 1) * ratio)
        taken = [(token, token - own.start, slice((series - 1) * size, None)) for token in own]
        if series == 2 and window > 0:
            before = range(own.start - ratio, own.start)
            taken += [(token, token - before.start, slice(0, size)) for token in before]
        weight = torch.stack([(gates[at] + bias[place])[part] for at, place, part in taken]).exp()
        value = torch.stack([values[at][part] for at, _, part in taken])
        made.append(_normed((weight * value).sum(0) / weight.sum(0), eps) * scale)
    rows = torch.stack(made) if made else x.new_zeros(0, size)
    return turned(rows[:, None], spec, [at * ratio for at in range(len(rows))])[:, 0]


def _chosen(
    weights: Weights, spec: Compressed, name: str, x: Tensor, latents: Tensor
) -> Callable[[int], list[int]]:
    """Which entries the query at a position sees."""
    indexer, ratio = spec.indexer, spec.ratio
    if indexer is None:
        return lambda at: list(range((at + 1) // ratio))
    keys = _entries(weights, spec, name, x, indexer.dim)
    size = indexer.heads * indexer.dim
    queries = latents @ weights.get(f"{name}.q_b_proj.weight", size, latents.shape[1]).T
    queries = turned(queries.view(len(x), indexer.heads, -1), spec, range(len(x)))
    share = x @ weights.get(f"{name}.scorer.weights_proj.weight", indexer.heads, x.shape[1]).T
    products = torch.einsum("qhd,kd->qkh", queries, keys).clamp(min=0)
    scores = torch.einsum("qkh,qh->qk", products, share).tolist()

    def of(at: int) -> list[int]:
        order = sorted(range((at + 1) // ratio), key=lambda entry: (-scores[at][entry], entry))
        return sorted(order[: indexer.top_k])

    return of


def compressed(weights: Weights, spec: Compressed, name: str, x: Tensor) -> Tensor:
    """[tokens, hidden]"""
    tokens, hidden, eps = len(x), x.shape[1], weights.config.norm_eps
    latents = x @ weights.get(f"{name}.q_a_proj.weight", spec.query_rank, hidden).T
    latents = _normed(latents, eps) * weights.get(f"{name}.q_a_norm.weight", spec.query_rank)
    size = spec.heads * spec.dim
    queries = latents @ weights.get(f"{name}.q_b_proj.weight", size, spec.query_rank).T
    queries = _normed(queries.view(tokens, spec.heads, spec.dim), eps)
    own = x @ weights.get(f"{name}.kv_proj.weight", spec.dim, hidden).T
    own = _normed(own, eps) * weights.get(f"{name}.kv_norm.weight", spec.dim)
    queries = turned(queries, spec, range(tokens))
    keys = turned(own[:, None], spec, range(tokens))[:, 0]
    sinks = weights.get(f"{name}.sinks", spec.heads)
    seen, entries = (lambda at: []), x.new_zeros(0, spec.dim)
    if spec.ratio is not None:
        entries = _entries(weights, spec, f"{name}.compressor", x, spec.dim)
        seen = _chosen(weights, spec, f"{name}.compressor.indexer", x, latents)
    rows = []
    for at in range(tokens):
        visible = torch.cat((keys[max(0, at - spec.near + 1) : at + 1], entries[seen(at)]))
        scores = queries[at] @ visible.T / math.sqrt(spec.dim)
        share = torch.cat((scores, sinks[:, None]), 1).softmax(1)[:, :-1]
        rows.append(share @ visible)
    mixed = turned(torch.stack(rows), spec, range(tokens), back=True)
    groups = mixed.reshape(tokens, spec.output_groups, -1)
    shape = spec.output_groups * spec.output_rank, groups.shape[2]
    first = weights.get(f"{name}.o_a_proj.weight", *shape).view(spec.output_groups, -1, shape[1])
    inner = torch.einsum("tgi,goi->tgo", groups, first).flatten(1)
    return inner @ weights.get(f"{name}.o_b_proj.weight", hidden, shape[0]).T


def into_half(weights: Weights, name: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """What a half of a layer sees of [tokens, streams, hidden], and the weights behind it."""
    config = weights.config
    spec, count = config.streams, config.streams.count
    parts = [count, count] + [count * count] * (spec.iterations is not None)
    outputs = sum(parts)
    flat = _normed(streams.flatten(1), config.norm_eps)
    made = flat @ weights.get(f"{name}.fn", outputs, flat.shape[1]).T
    base, scale = weights.get(f"{name}.base", outputs), weights.get(f"{name}.scale", len(parts))
    before, behind, *mixing = (
        part * factor + own
        for part, factor, own in zip(made.split(parts, 1), scale, base.split(parts), strict=True)
    )
    weight = 1 / (1 + (-before).exp()) + spec.eps
    seen = torch.einsum("tc,tch->th", weight, streams)
    behind = spec.largest / (1 + (-behind).exp()) + spec.behind_eps
    if spec.iterations is None:
        return seen, behind, None
    matrices = []
    for row in mixing[0].view(-1, count, count):
        matrix = row.softmax(1) + spec.eps
        for turn in range(2 * spec.iterations - 1):
            matrix = matrix / (matrix.sum(turn % 2, keepdim=True) + spec.eps)
        matrices.append(matrix)
    return seen, behind, torch.stack(matrices)


def out_of_half(streams: Tensor, made: Tensor, behind: Tensor, mixing: Tensor | None) -> Tensor:
    mixed = streams if mixing is None else torch.einsum("tfo,tfh->toh", mixing, streams)
    return mixed + torch.einsum("tc,th->tch", behind, made)


def last_mixture(weights: Weights, streams: Tensor) -> Tensor:
    config, count = weights.config, weights.config.streams.count
    if not config.streams.learnt_end:
        return streams.sum(1) / count
    flat = _normed(streams.flatten(1), config.norm_eps)
    made = flat @ weights.get("model.hc_head.hc_fn", count, flat.shape[1]).T
    made = made * weights.get("model.hc_head.hc_scale", 1)
    made = made + weights.get("model.hc_head.hc_base", count)
    weight = 1 / (1 + (-made).exp()) + config.streams.eps
    return torch.einsum("tc,tch->th", weight, streams)
