"""Several residual streams instead of one sum (manifold-constrained hyper-connections,
arXiv:2512.24880; DeepSeek-V4).

A half of a layer sees a mixture of the streams; what comes out of it is added to each of them, by
weights of its own, and the streams are mixed with each other by a matrix whose rows and columns add
up to 1, about; or they are not mixed (Hy4). All these weights follow from the token's own streams.
They are computed in float32 at least.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.norm import rms_norm
from runtime.model.layers import WeightSource
from runtime.model.streams import Streams


class HyperConnection:
    """The streams around one half of a layer. Weights are those of ``NAME``."""

    def __init__(
        self, spec: Streams, name: str, hidden: int, source: WeightSource, *, eps: float
    ) -> None:
        self._spec, self._eps = spec, eps
        parts = spec.parts
        outputs = sum(parts)
        self._weight = source.tensor(f"{name}.fn", (outputs, spec.count * hidden), wide=True)
        self._bias = source.tensor(f"{name}.base", (outputs,), wide=True)
        scale = source.tensor(f"{name}.scale", (len(parts),), wide=True)
        sizes = torch.tensor(parts, device=scale.device)
        self._scale = scale.repeat_interleave(sizes)
        self.step_bytes = self._weight.nbytes

    def __call__(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The mixture that the half sees, and the weights of what comes of it.

        Args:
            streams: [T, count, hidden].

        Returns:
            The mixture [T, hidden] in the streams' dtype; the weights of the result [T, count], and
            of the streams [T, count, count], from each of the first axis to each of the second;
            None: they are kept as they are.
        """
        spec, count, eps = self._spec, self._spec.count, self._spec.eps
        made = _made(streams, self._weight, self._eps) * self._scale + self._bias
        before, behind, *rest = torch.split(made, spec.parts, dim=1)
        mixed = _weighed(streams, before.sigmoid() + eps)
        behind = spec.largest * behind.sigmoid() + spec.behind_eps
        if spec.iterations is None:
            return mixed, behind, None
        mixing = rest[0].view(-1, count, count).softmax(-1) + eps
        mixing = mixing / (mixing.sum(1, keepdim=True) + eps)
        for _ in range(spec.iterations - 1):
            mixing = mixing / (mixing.sum(2, keepdim=True) + eps)
            mixing = mixing / (mixing.sum(1, keepdim=True) + eps)
        return mixed, behind, mixing


def joined(streams: Tensor, result: Tensor, behind: Tensor, mixing: Tensor | None) -> Tensor:
    """The streams behind a half of a layer: [T, count, hidden], like ``streams``.

    Args:
        streams: before it.
        result: what came of it, [T, hidden].
        behind: see ``HyperConnection``, likewise ``mixing``.
    """
    wide, own = streams.to(behind.dtype), result.to(behind.dtype)
    if mixing is None:
        return (wide + behind[:, :, None] * own[:, None]).to(streams.dtype)
    parts = [
        (mixing[:, :, to, None] * wide).sum(1) + behind[:, to, None] * own
        for to in range(streams.shape[1])
    ]
    return torch.stack(parts, dim=1).to(streams.dtype)


class StreamHead:
    """The mixture of streams that logits are made of. Weights are those of ``model.hc_head``."""

    def __init__(self, spec: Streams, hidden: int, source: WeightSource, *, eps: float) -> None:
        name = "model.hc_head"
        self._spec, self._eps = spec, eps
        self._weight = source.tensor(f"{name}.hc_fn", (spec.count, spec.count * hidden), wide=True)
        self._bias = source.tensor(f"{name}.hc_base", (spec.count,), wide=True)
        self._scale = source.tensor(f"{name}.hc_scale", (1,), wide=True)
        self.step_bytes = self._weight.nbytes

    def __call__(self, streams: Tensor) -> Tensor:
        """[T, count, hidden] -> [T, hidden]."""
        made = _made(streams, self._weight, self._eps) * self._scale + self._bias
        return _weighed(streams, made.sigmoid() + self._spec.eps)


def _made(streams: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[T, outputs]: what the map makes of the streams side by side, normed together."""
    flat = streams.flatten(1).to(weight.dtype)
    return functional.linear(rms_norm(flat, None, eps), weight)


def _weighed(streams: Tensor, weights: Tensor) -> Tensor:
    return (weights[:, :, None] * streams).sum(1).to(streams.dtype)
