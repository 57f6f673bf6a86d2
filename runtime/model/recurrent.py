"""Recurrent mixers as values: what keeps a state of one size, whatever the number of tokens.

No torch here. Always true: a description that exists is of a mixer that can be built.
"""

import math
from dataclasses import dataclass
from typing import Final

MOST_TAPS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """A gated causal convolution over the last few tokens, channel by channel (LFM2): a mixer
    that keeps the inputs of the last ``taps - 1`` tokens and nothing else."""

    channels: int
    taps: int
    """Tokens that an output sees, its own included."""
    bias: bool = False
    """On the convolution and on both projections."""

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise ValueError(f"a convolution of {self.channels} channels, at least 1 is needed")
        if not 2 <= self.taps <= MOST_TAPS:
            raise ValueError(f"a convolution over {self.taps} tokens, 2 to {MOST_TAPS} are served")

    def num_parameters(self, hidden: int) -> int:
        biases = (4 * self.channels + hidden) * self.bias
        return 4 * self.channels * hidden + self.channels * self.taps + biases


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """The gated delta rule behind a causal convolution over the last few tokens (Qwen3-Next): a
    mixer that keeps a matrix for each head of values, and the inputs of the last ``taps - 1``
    tokens."""

    key_heads: int
    """Each serves as many neighbouring heads of values."""
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    """Tokens that an output of the convolution sees, its own included."""

    def __post_init__(self) -> None:
        for name in ("key_heads", "value_heads", "key_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"{self.value_heads} heads of values are not a multiple of {self.key_heads} of keys"
            )
        if not 2 <= self.taps <= MOST_TAPS:
            raise ValueError(f"a convolution over {self.taps} tokens, 2 to {MOST_TAPS} are served")

    @property
    def key_size(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    def num_parameters(self, hidden: int) -> int:
        maps = hidden * (self.channels + 2 * self.value_heads + 2 * self.value_size)
        return maps + self.channels * self.taps + 2 * self.value_heads + self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """A state space of scalar decays behind a causal convolution over the last few tokens (Mamba-2,
    ``kernels.mamba2``): a mixer that keeps a matrix for each head, and the inputs of the last
    ``taps - 1`` tokens."""

    heads: int
    head_dim: int
    groups: int
    """Of neighbouring heads, that share what goes into a matrix and what reads it."""
    state_dim: int
    taps: int
    """Tokens that an output of the convolution sees, its own included."""
    conv_bias: bool = True
    bias: bool = False
    """Whether both projections have a bias."""
    least_step: float = 0.0
    """Steps are held within these."""
    most_step: float = math.inf

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "groups", "state_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if self.heads % self.groups:
            raise ValueError(f"{self.heads} heads are not in {self.groups} equal groups")
        if not 2 <= self.taps <= MOST_TAPS:
            raise ValueError(f"a convolution over {self.taps} tokens, 2 to {MOST_TAPS} are served")
        if not 0 <= self.least_step <= self.most_step:
            raise ValueError(f"steps within {self.least_step} and {self.most_step}")

    @property
    def size(self) -> int:
        """Numbers of a token in all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: heads, what goes into matrices, what reads them."""
        return self.size + 2 * self.groups * self.state_dim

    @property
    def key_heads(self) -> int:
        return self.groups

    @property
    def value_heads(self) -> int:
        return self.heads

    @property
    def key_dim(self) -> int:
        return self.state_dim

    @property
    def value_dim(self) -> int:
        return self.head_dim

    def num_parameters(self, hidden: int) -> int:
        maps = hidden * (self.size + self.channels + self.heads) + self.size * hidden
        biases = (self.size + self.channels + self.heads + hidden) * self.bias
        convolution = self.channels * (self.taps + self.conv_bias)
        return maps + biases + convolution + 3 * self.heads + self.size


OfMatrices = GatedDelta | Mamba2
"""Mixers that keep a matrix for each head."""
Recurrent = ShortConv | OfMatrices
