"""How each tensor of a decoder is cut among ranks: which rows or columns one of them has.

What a mixer keeps in one tensor and computes apart (queries, keys and values of a convolution,
gates and steps of a projection) is cut segment by segment. No torch here.

Always true: the parts of all ranks cover a tensor, and none has more of it than it computes with.
"""

import re
from dataclasses import dataclass
from typing import Final

from runtime.model.compressed import Compressed
from runtime.model.config import Attention, Layer, ModelConfig
from runtime.model.latent import Latent
from runtime.model.partition import Partition
from runtime.model.recurrent import GatedDelta, KimiDelta, Mamba2, ShortConv

Spans = list[tuple[int, int]]
"""Neighbours along the axis that is cut: the first, and how many."""

_OF_LAYER = re.compile(r"model\.layers\.(\d+)\.(self_attn|mlp|linear_attn|mamba|conv)\.(.+)")
_ADDED: Final = ("o_proj.bias", "down_proj.bias", "mamba.out_proj.bias", "conv.out_proj.bias")


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

    def spans(self, shape: tuple[int, ...]) -> Spans:
        """The part's places in the whole, by the part's shape."""
        size = shape[self.axis]
        return [(self.part * size, size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Neighbouring outputs of a tensor, which are cut by themselves."""

    size: int
    """How many they are in the whole."""
    parts: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentedCut:
    """The part of a tensor that is several segments of outputs, one below the other."""

    segments: tuple[Segment, ...]

    @property
    def axis(self) -> int:
        """Outputs."""
        return 0

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See ``Cut.whole``."""
        return (sum(each.size for each in self.segments), *shape[1:])

    def spans(self, shape: tuple[int, ...]) -> Spans:
        """See ``Cut.spans``."""
        found, begin = [], 0
        for each in self.segments:
            size = each.size // each.parts
            found.append((begin + each.part * size, size))
            begin += each.size
        return found


TensorCut = Cut | SegmentedCut


def cut_of(name: str, config: ModelConfig, partition: Partition) -> TensorCut | None:
    """How one of the decoder's tensors is cut; None: every rank has all of it.

    Args:
        name: as the decoder calls it.
        config: of the whole model, which can be cut (``partition.part_of``).
    """
    found = _OF_LAYER.fullmatch(name)
    if found is None:
        return None
    layer, within, rest = config.layers[int(found[1])], found[2], found[3]
    if within == "mlp":
        return _of_feed_forward(rest, partition)
    return _of_mixer(rest, layer, _Cutter(partition))


def is_added_once(name: str, partition: Partition) -> bool:
    """Whether a tensor is added to what the ranks sum, so that the leading one alone has it: the
    bias of a map whose inputs are cut."""
    found = _OF_LAYER.fullmatch(name)
    if found is None or not name.endswith(_ADDED):
        return False
    return not (partition.whole_experts and found[3].startswith("experts."))


class _Cutter:
    """Cuts for one rank."""

    def __init__(self, partition: Partition) -> None:
        self._ranks, self._rank = partition.ranks, partition.rank

    @property
    def outputs(self) -> Cut:
        return Cut(axis=0, parts=self._ranks, part=self._rank)

    @property
    def inputs(self) -> Cut:
        return Cut(axis=1, parts=self._ranks, part=self._rank)

    def along(self, axis: int) -> Cut:
        return Cut(axis=axis, parts=self._ranks, part=self._rank)

    def shared(self, count: int) -> Cut:
        """Outputs of ``count`` things, of which neighbouring ranks have the same one where there
        are more ranks."""
        parts = min(self._ranks, count)
        return Cut(axis=0, parts=parts, part=self._rank * parts // self._ranks)

    def segments(self, *sizes: tuple[int, int | None]) -> SegmentedCut:
        """``sizes``: outputs of each segment, and of how many things that ranks may share; None:
        none of it is shared."""
        found = []
        for size, count in sizes:
            cut = self.outputs if count is None else self.shared(count)
            found.append(Segment(size=size, parts=cut.parts, part=cut.part))
        return SegmentedCut(segments=tuple(found))


def _of_feed_forward(rest: str, partition: Partition) -> TensorCut | None:
    module, _, kind = rest.rpartition(".")
    if partition.whole_experts and module.startswith("experts."):
        return None
    if module.endswith(("gate_proj", "up_proj")):
        return _Cutter(partition).outputs
    if module.endswith("down_proj") and kind == "weight":
        return _Cutter(partition).inputs
    return None


def _of_mixer(rest: str, layer: Layer, cutter: _Cutter) -> TensorCut | None:
    mixer = layer.mixer
    if rest in ("o_proj.weight", "o_b_proj.weight", "out_proj.weight"):
        return cutter.inputs
    module = rest.rpartition(".")[0]
    if isinstance(mixer, Attention):
        return _of_attention(rest, module, mixer, cutter)
    if isinstance(mixer, Latent):
        cut = "q_proj", "q_b_proj", "kv_b_proj", "g_proj", "gate_proj"
        return cutter.outputs if rest == "sinks" or module in cut else None
    if isinstance(mixer, Compressed):
        return cutter.outputs if rest == "sinks" or module in ("q_b_proj", "o_a_proj") else None
    if isinstance(mixer, GatedDelta):
        return _of_delta(rest, module, mixer, cutter)
    if isinstance(mixer, KimiDelta):
        return _of_kimi(rest, module, mixer, cutter)
    if isinstance(mixer, Mamba2):
        return _of_mamba(rest, module, mixer, cutter)
    assert isinstance(mixer, ShortConv)
    if module == "in_proj":
        return cutter.segments(*[(mixer.channels, None)] * 3)
    return cutter.outputs if module == "conv" else None


def _of_attention(rest: str, module: str, mixer: Attention, cutter: _Cutter) -> TensorCut | None:
    """Of gated attention the gates lie behind each head's queries, and go with them, unless they
    have a matrix of their own. Index queries are as many as heads of keys."""
    if rest == "sinks" or (module == "q_norm" and mixer.norm == "all"):
        return cutter.outputs
    if module in ("q_proj", "gate_proj", "g_proj"):
        return cutter.outputs
    of_keys = module in ("k_proj", "v_proj", "indexer.q_proj")
    if of_keys or (module == "k_norm" and mixer.norm == "all"):
        return cutter.shared(mixer.kv_heads)
    return None


def _of_delta(rest: str, module: str, mixer: GatedDelta, cutter: _Cutter) -> TensorCut | None:
    if module in ("in_proj_q", "in_proj_k"):
        return cutter.shared(mixer.key_heads)
    if module.startswith("in_proj_") or rest in ("A_log", "dt_bias"):
        return cutter.outputs
    if module == "conv1d":
        keys = mixer.key_size, mixer.key_heads
        return cutter.segments(keys, keys, (mixer.value_size, None))
    return None


def _of_kimi(rest: str, module: str, mixer: KimiDelta, cutter: _Cutter) -> TensorCut | None:
    if rest == "A_log":
        return cutter.along(mixer.rates_shape.index(mixer.heads))
    whole = rest == "o_norm.weight" or module in ("f_a_proj", "g_a_proj")
    return None if whole else cutter.outputs


def _of_mamba(rest: str, module: str, mixer: Mamba2, cutter: _Cutter) -> TensorCut | None:
    heads = mixer.size, None
    of_groups = mixer.groups * mixer.state_dim, mixer.groups
    if module == "in_proj":
        return cutter.segments(heads, heads, of_groups, of_groups, (mixer.heads, None))
    if module == "conv1d":
        return cutter.segments(heads, of_groups, of_groups)
    return cutter.outputs if rest != "out_proj.bias" else None
