"""One rank's weights, cut out of the whole model's as they are read."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from kernels.codes import Codes
from kernels.quant_matmul import GROUP
from runtime.model.adapters import MapPlace
from runtime.model.compressed import Compressed
from runtime.model.config import Attention, Experts, Layer, LoadError, ModelConfig
from runtime.model.family_weights import Part
from runtime.model.latent import Latent
from runtime.model.layers import Matrix, WeightBits
from runtime.model.partition import Partition, fitting_ranks, said
from runtime.model.recurrent import GatedDelta, KimiDelta, Mamba2, ShortConv
from runtime.model.tensor_cuts import Cut, Spans, TensorCut, cut_of, is_added_once

_FINEST = 32
"""Fewest inputs of a rank's that may share a scale."""


class WholeWeights(Protocol):
    """Weights of a whole model, of which parts can be had."""

    def tensor(
        self, name: str, shape: tuple[int, ...], *, wide: bool = False, part: Part | None = None
    ) -> Tensor:
        """See ``WeightSource.tensor``; ``shape`` is the whole tensor's, and only what ``part``
        takes of it is kept."""
        ...

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """See ``WeightSource.matrix``."""
        ...

    def place(self, name: str, outputs: int, inputs: int) -> MapPlace:
        """See ``PlacesMaps``."""
        ...


class StoredWeights(WholeWeights, Protocol):
    """The same in files."""

    def group(self, name: str, shape: tuple[int, int]) -> int | None:
        """Neighbouring inputs of a linear map that cannot be parted at will, as they share a scale
        or bytes; None: any can."""
        ...


def check_groups(
    name: str, stored: StoredWeights, config: ModelConfig, partition: Partition
) -> None:
    """Whether a model whose weights are in few bits can be cut, as far as headers tell.

    Args:
        name: the model's, for complaints.
        config: of the whole model.

    Raises:
        LoadError: groups that share a scale would be cut too finely.
    """
    if config.quantisation is None:
        return
    grouped = []
    for matrix, outputs, inputs in _cut_by_inputs(config, partition):
        group = stored.group(matrix, (outputs, inputs))
        if group is not None:
            grouped.append((matrix, inputs, group))

    def finest(ranks: int, inputs: int, group: int) -> bool:
        return math.gcd(inputs // ranks, group) % _FINEST == 0

    ranks = partition.ranks
    wrong = next((each for each in grouped if not finest(ranks, *each[1:])), None)
    if wrong is None:
        return
    can_be_had = [
        other
        for other in fitting_ranks(config, partition)
        if all(finest(other, inputs, group) for _, inputs, group in grouped)
    ]
    matrix, inputs, group = wrong
    module = matrix.removesuffix(".weight")
    raise LoadError(
        f"{name}: --tensor-parallel {ranks} cannot be had: {group} inputs of {module} share a "
        f"scale, and a rank would have {inputs // ranks} of its {inputs}; parts are of whole "
        f"groups, or of multiples of {_FINEST}" + said(can_be_had)
    )


def _cut_by_inputs(config: ModelConfig, partition: Partition) -> Iterator[tuple[str, int, int]]:
    """The linear maps of which ranks have some of the inputs: name, outputs and inputs."""
    hidden = config.hidden_size
    for index, layer in enumerate(config.layers):
        prefix, mlp = f"model.layers.{index}", layer.feed_forward
        if layer.mixer is not None:
            module, inputs = _output_of_mixer(layer)
            yield f"{prefix}.{module}.weight", hidden, inputs
        if isinstance(mlp, Experts):
            if mlp.shared is not None:
                yield f"{prefix}.mlp.shared_expert.down_proj.weight", hidden, mlp.shared.size
            for expert in () if partition.whole_experts else mlp.held:
                yield f"{prefix}.mlp.experts.{expert}.down_proj.weight", hidden, mlp.each.size
        elif mlp is not None:
            yield f"{prefix}.mlp.down_proj.weight", hidden, mlp.size


def _output_of_mixer(layer: Layer) -> tuple[str, int]:
    """The map that a mixer's results go through, and its inputs."""
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return "self_attn.o_proj", mixer.result_size
    if isinstance(mixer, Compressed):
        return "self_attn.o_b_proj", mixer.output_groups * mixer.output_rank
    if isinstance(mixer, Latent):
        return "self_attn.o_proj", mixer.heads * mixer.value_dim
    if isinstance(mixer, GatedDelta):
        return "linear_attn.out_proj", mixer.value_size
    if isinstance(mixer, KimiDelta):
        return "linear_attn.o_proj", mixer.size
    if isinstance(mixer, Mamba2):
        return "mamba.out_proj", mixer.size
    assert isinstance(mixer, ShortConv)
    return "conv.out_proj", mixer.channels


class CutWeights:
    """A ``WeightSource`` of one rank's decoder, over the whole model's weights."""

    def __init__(
        self, whole: WholeWeights, config: ModelConfig, partition: Partition, bits: WeightBits
    ) -> None:
        """
        Args:
            config: of the whole model.
            bits: that linear maps are kept in.
        """
        self._whole = whole
        self._config = config
        self._partition = partition
        self._bits = bits

    def tensor(self, name: str, shape: tuple[int, ...], *, wide: bool = False) -> Tensor:
        """See ``WeightSource.tensor``; ``shape`` is the part's.

        Raises:
            LoadError: also where a group of 4 bits would be cut.
        """
        if not self._partition.leads and is_added_once(name, self._partition):
            return self._whole.tensor(name, shape, wide=wide).zero_()
        cut = cut_of(name, self._config, self._partition)
        if cut is None:
            return self._whole.tensor(name, shape, wide=wide)
        self._check_groups(name, shape, cut)
        axis, spans = cut.axis, cut.spans(shape)
        return self._whole.tensor(
            name, cut.whole(shape), wide=wide, part=lambda whole: _taken(whole, axis, spans)
        )

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """See ``WeightSource.matrix``. Of a matrix in few bits the whole is read, and the part
        copied."""
        if self._config.quantisation is None:
            return self.tensor(name, shape)
        cut = cut_of(name, self._config, self._partition)
        if cut is None:
            return self._whole.matrix(name, shape)
        outputs, inputs = cut.whole(shape)
        found = self._whole.matrix(name, (outputs, inputs))
        spans = cut.spans(shape)
        if isinstance(found, Tensor):
            part = _taken(found, cut.axis, spans)
            return part.clone(memory_format=torch.contiguous_format)
        return _part_of_codes(found, cut.axis, spans)

    def place(self, name: str, outputs: int, inputs: int) -> MapPlace:
        """See ``PlacesMaps``; what is added to a map is cut as its weight is."""
        cut = cut_of(f"{name}.weight", self._config, self._partition)
        if cut is None:
            return self._whole.place(name, outputs, inputs)
        shape = outputs, inputs
        place = self._whole.place(name, *cut.whole(shape))
        own, spans = cut.axis, cut.spans(shape)

        def part(matrix: Tensor, axis: int) -> Tensor:
            return _taken(matrix, axis, spans) if axis == own else matrix

        return replace(place, part=part)

    def _check_groups(self, name: str, shape: tuple[int, ...], cut: TensorCut) -> None:
        if self._bits != 4 or not isinstance(cut, Cut) or cut.axis != 1 or not shape[1] % GROUP:
            return
        raise LoadError(
            f"{name} has {shape[1]} inputs on each of {cut.parts} ranks, not whole groups of "
            f"{GROUP}: --quantization int8 can be cut so, or fewer ranks"
        )


def _taken(whole: Tensor, axis: int, spans: Spans) -> Tensor:
    """Neighbours along an axis, without copying where they are all neighbours."""
    parts = [whole.narrow(axis, low, size) for low, size in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _part_of_codes(whole: Codes, axis: int, spans: Spans) -> Codes:
    if axis == 1:
        ((low, size),) = spans
        part = whole.columns(low, size)
    elif len(spans) == 1:
        ((low, size),) = spans
        part = whole.rows(slice(low, low + size))
    else:
        rows = torch.cat([torch.arange(low, low + size) for low, size in spans])
        part = whole.rows(rows)
    return part.to(whole.values.device)
