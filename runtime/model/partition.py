"""What one of several ranks has of a model: an equal part of heads, KV, states and the widths
between.

Heads of attention are cut by their keys' heads: a rank has neighbouring heads of queries and the
heads of keys and values that these use. Where there are more ranks than those, neighbouring ranks
have the same one; latents and compressed entries, which all heads share, every rank has. Heads of
recurrent layers are cut likewise, their states with them, and convolutions by their channels. An
MLP is cut by its width; experts likewise, or each rank has some of them whole. Embedding, norms,
routers and the output projection are whole on every rank. No torch here.

Always true: the parts of all ranks, summed after each mixer and each feed-forward, are the model.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.model.compressed import Compressed
from runtime.model.config import (
    Attention,
    Experts,
    Gated,
    Layer,
    LoadError,
    Mixer,
    ModelConfig,
    Plain,
)
from runtime.model.latent import Latent
from runtime.model.recurrent import GatedDelta, KimiDelta, Mamba2, ShortConv, SpreadGroup

_Mlp = Gated | Plain
MOST_RANKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One rank's place among all of them."""

    ranks: int
    rank: int
    whole_experts: bool = False
    """Experts are dealt out whole; else each is cut by its width."""

    def __post_init__(self) -> None:
        if not 2 <= self.ranks <= MOST_RANKS or not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} of {self.ranks}")

    @property
    def leads(self) -> bool:
        """Whether it is the rank that plans and draws."""
        return self.rank == 0


def part_of(name: str, config: ModelConfig, partition: Partition) -> ModelConfig:
    """The decoder of one rank.

    Args:
        name: the model's, for complaints.
        config: of the whole model.

    Raises:
        LoadError: it cannot be cut into so many parts.
    """
    try:
        layers = _layers(config, partition)
    except ValueError as error:
        raise LoadError(
            f"{name}: --tensor-parallel {partition.ranks} cannot be had: {error}"
            + said(fitting_ranks(config, partition))
        ) from None
    if partition.whole_experts and not config.has_experts:
        raise LoadError(f"{name}: --expert-parallel is given, and the model has no experts")
    return replace(config, layers=layers)


def _layers(config: ModelConfig, partition: Partition) -> tuple[Layer, ...]:
    """Raises ValueError: they cannot be cut so."""
    return tuple(_layer(layer, partition) for layer in config.layers)


def fitting_ranks(config: ModelConfig, partition: Partition) -> list[int]:
    """The numbers of ranks that the layers can be cut into."""
    found = []
    for ranks in range(2, MOST_RANKS + 1):
        with contextlib.suppress(ValueError):
            _layers(config, replace(partition, ranks=ranks, rank=0))
            found.append(ranks)
    return found


def said(numbers: Sequence[int]) -> str:
    """The end of a refusal: the numbers of ranks that can be had."""
    return f"; what can be had: {', '.join(map(str, numbers))}" if numbers else ""


def _layer(layer: Layer, partition: Partition) -> Layer:
    mixer, feed_forward = layer.mixer, layer.feed_forward
    part = None if mixer is None else _mixer(mixer, partition)
    cut: Gated | Plain | Experts | None
    if isinstance(feed_forward, Experts):
        cut = _experts(feed_forward, partition)
    else:
        cut = None if feed_forward is None else _mlp(feed_forward, partition)
    return replace(layer, mixer=part, feed_forward=cut)


def _mixer(mixer: Mixer, partition: Partition) -> Mixer:
    if isinstance(mixer, Attention):
        return _attention(mixer, partition)
    if isinstance(mixer, Compressed):
        return _compressed(mixer, partition)
    if isinstance(mixer, GatedDelta):
        return _delta(mixer, partition)
    if isinstance(mixer, Mamba2):
        return _mamba(mixer, partition)
    if isinstance(mixer, ShortConv):
        _check_divides(mixer.channels, partition.ranks, "channels")
        return replace(mixer, channels=mixer.channels // partition.ranks)
    return _of_like_heads(mixer, partition)


def _attention(mixer: Attention, partition: Partition) -> Attention:
    ranks = partition.ranks
    _check_divides(mixer.heads, ranks, "heads")
    kv_heads = _shared(mixer.kv_heads, ranks, "heads of keys")
    return replace(mixer, heads=mixer.heads // ranks, kv_heads=kv_heads)


def _delta(mixer: GatedDelta, partition: Partition) -> GatedDelta:
    ranks = partition.ranks
    _check_divides(mixer.value_heads, ranks, "heads of values")
    key_heads = _shared(mixer.key_heads, ranks, "heads of keys")
    return replace(mixer, key_heads=key_heads, value_heads=mixer.value_heads // ranks)


def _mamba(mixer: Mamba2, partition: Partition) -> Mamba2:
    ranks = partition.ranks
    _check_divides(mixer.heads, ranks, "heads")
    groups, spread = _shared(mixer.groups, ranks, "groups of heads"), None
    if ranks > mixer.groups:
        spread = SpreadGroup(
            number=partition.rank * mixer.groups // ranks,
            groups=mixer.groups,
            ranks=ranks // mixer.groups,
        )
    return replace(mixer, heads=mixer.heads // ranks, groups=groups, spread=spread)


def _of_like_heads(mixer: Latent | KimiDelta, partition: Partition) -> Latent | KimiDelta:
    _check_divides(mixer.heads, partition.ranks, "heads")
    return replace(mixer, heads=mixer.heads // partition.ranks)


def _compressed(mixer: Compressed, partition: Partition) -> Compressed:
    """Heads are cut between the groups of their output projection."""
    ranks = partition.ranks
    _check_divides(mixer.output_groups, ranks, "groups of heads")
    return replace(mixer, heads=mixer.heads // ranks, output_groups=mixer.output_groups // ranks)


def _mlp(mlp: _Mlp, partition: Partition) -> _Mlp:
    _check_divides(mlp.size, partition.ranks, "columns of the feed-forward")
    return replace(mlp, size=mlp.size // partition.ranks)


def _experts(experts: Experts, partition: Partition) -> Experts:
    shared = None if experts.shared is None else _mlp(experts.shared, partition)
    if not partition.whole_experts:
        return replace(experts, each=_mlp(experts.each, partition), shared=shared)
    count = experts.router.num_experts
    _check_divides(count, partition.ranks, "experts")
    each = count // partition.ranks
    own = partition.rank * each, (partition.rank + 1) * each
    return replace(experts, own=own, shared=shared)


def _check_divides(number: int, ranks: int, what: str) -> None:
    if number % ranks:
        raise ValueError(f"{number} {what} are not a multiple of {ranks}")


def _shared(number: int, ranks: int, what: str) -> int:
    """How many of a number of things a rank has, at least one, which others may have as well."""
    if number % ranks and ranks % number:
        raise ValueError(f"{number} {what} are neither a multiple nor a divisor of {ranks}")
    return max(1, number // ranks)
