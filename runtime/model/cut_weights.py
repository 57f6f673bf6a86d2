"""One rank's weights, cut out of the whole model's as they are read."""

from typing import Protocol

from torch import Tensor

from kernels.quant_matmul import GROUP
from runtime.model.config import LoadError, ModelConfig
from runtime.model.family_weights import Part
from runtime.model.layers import WeightBits
from runtime.model.partition import Cut, Partition, cut_of, is_added_once


class WholeWeights(Protocol):
    """Weights of a whole model, of which parts can be had."""

    def tensor(
        self, name: str, shape: tuple[int, ...], *, wide: bool = False, part: Part | None = None
    ) -> Tensor:
        """See ``WeightSource.tensor``; ``shape`` is the whole tensor's, and only what ``part``
        takes of it is kept."""
        ...


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
        size, axis = shape[cut.axis], cut.axis
        return self._whole.tensor(
            name,
            cut.whole(shape),
            wide=wide,
            part=lambda whole: whole.narrow(axis, cut.part * size, size),
        )

    def matrix(self, name: str, shape: tuple[int, int]) -> Tensor:
        """See ``WeightSource.matrix``."""
        return self.tensor(name, shape)

    def _check_groups(self, name: str, shape: tuple[int, ...], cut: Cut) -> None:
        if self._bits != 4 or cut.axis != 1 or not shape[1] % GROUP:
            return
        raise LoadError(
            f"{name} has {shape[1]} inputs on each of {cut.parts} ranks, not whole groups of "
            f"{GROUP}: --quantization int8 can be cut so, or fewer ranks"
        )
