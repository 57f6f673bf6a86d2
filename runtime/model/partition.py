"""What one of several ranks has of a model: an equal part of the heads, of the KV and of the widths
between.

Heads of attention are cut by their keys' heads: a rank has neighbouring heads of queries and the
heads of keys and values that these use. Where there are more ranks than those, neighbouring ranks
have the same one; latents and compressed entries, which all heads share, every rank has. An MLP is
cut by its width; experts likewise, or each rank has some of them whole. Embedding, norms, routers
and the output projection are whole on every rank. No torch here.

Always true: the parts of all ranks, summed after each mixer and each feed-forward, are the model.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.model.compressed import Compressed
from runtime.model.config import Attention, Experts, Gated, Layer, LoadError, ModelConfig, Plain
from runtime.model.latent import Latent

_Mlp = Gated | Plain
MOST_RANKS = 64
_OF_LAYER = re.compile(r"model\.layers\.(\d+)\.(self_attn|mlp)\.(.+)")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The part of a tensor that a rank has."""

    axis: int
    """Axis that is cut. 0: outputs; 1: inputs."""
    parts: int
    part: int

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the whole tensor, by the part's."""
        return (*shape[: self.axis], shape[self.axis] * self.parts, *shape[self.axis + 1 :])


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


def cut_of(name: str, config: ModelConfig, partition: Partition) -> Cut | None:
    """How one of the decoder's tensors is cut; None: every rank has all of it.

    Args:
        name: as the decoder calls it.
        config: of the whole model.
    """
    found = _OF_LAYER.fullmatch(name)
    if found is None:
        return None
    ranks, rank = partition.ranks, partition.rank
    within, rest = found[2], found[3]
    module, _, kind = rest.rpartition(".")
    if within == "self_attn":
        if rest == "sinks" or module in ("q_proj", "q_b_proj", "kv_b_proj", "o_a_proj"):
            return Cut(axis=0, parts=ranks, part=rank)
        if module in ("k_proj", "v_proj"):
            mixer = config.layers[int(found[1])].mixer
            assert isinstance(mixer, Attention)
            parts = min(ranks, mixer.kv_heads)
            return Cut(axis=0, parts=parts, part=rank * parts // ranks)
        return _columns(partition) if rest in ("o_proj.weight", "o_b_proj.weight") else None
    if partition.whole_experts and module.startswith("experts."):
        return None
    if module.endswith(("gate_proj", "up_proj")):
        return Cut(axis=0, parts=ranks, part=rank)
    return _columns(partition) if module.endswith("down_proj") and kind == "weight" else None


def is_added_once(name: str, partition: Partition) -> bool:
    """Whether a tensor is added to what the ranks sum, so that the leading one alone has it: the
    bias of a map whose inputs are cut."""
    found = _OF_LAYER.fullmatch(name)
    if found is None or not name.endswith(("o_proj.bias", "down_proj.bias")):
        return False
    return not (partition.whole_experts and found[3].startswith("experts."))


def _columns(partition: Partition) -> Cut:
    return Cut(axis=1, parts=partition.ranks, part=partition.rank)


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
    mixer = layer.mixer
    part: Attention | Latent | Compressed
    if isinstance(mixer, Latent):
        part = _latent(mixer, partition)
    elif isinstance(mixer, Compressed):
        part = _compressed(mixer, partition)
    elif isinstance(mixer, Attention):
        part = _attention(mixer, partition)
    else:
        raise ValueError(f"layers of {type(mixer).__name__} cannot be cut yet")
    feed_forward = layer.feed_forward
    cut: Gated | Plain | Experts | None
    if isinstance(feed_forward, Experts):
        cut = _experts(feed_forward, partition)
    else:
        cut = None if feed_forward is None else _mlp(feed_forward, partition)
    return replace(layer, mixer=part, feed_forward=cut)


def _attention(mixer: Attention, partition: Partition) -> Attention:
    ranks = partition.ranks
    if mixer.norm == "all":
        raise ValueError("queries are normed over all heads together, which cannot be cut yet")
    if mixer.gated:
        raise ValueError("attention whose results are gated cannot be cut yet")
    _check_divides(mixer.heads, ranks, "heads")
    if mixer.kv_heads % ranks and ranks % mixer.kv_heads:
        raise ValueError(f"{mixer.kv_heads} heads of keys are neither a multiple nor a divisor")
    return replace(mixer, heads=mixer.heads // ranks, kv_heads=max(1, mixer.kv_heads // ranks))


def _latent(mixer: Latent, partition: Partition) -> Latent:
    if mixer.gated:
        raise ValueError("attention whose results are gated cannot be cut yet")
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
