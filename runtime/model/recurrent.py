"""The shapes of recurrent layers: mixers that keep a state, whatever the number of tokens.

Each says what its state is made of: the inputs of the last tokens, and with some a matrix for each
head. No torch here.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

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
        _check_taps(self.taps)

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
    most_beta: float = 1.0
    """Betas are up to this: with 2 a matrix may turn around what it knows of a key (OLMo
    Hybrid)."""
    norm_eps: float | None = None
    """Of the gated norm; None: the model's."""

    by_channel: ClassVar[bool] = False
    """Whether each number of a key decays on its own, or all of a head's alike."""

    def __post_init__(self) -> None:
        for name in ("key_heads", "value_heads", "key_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"{self.value_heads} heads of values are not a multiple of {self.key_heads} of keys"
            )
        _check_taps(self.taps)
        if not 0 < self.most_beta <= 2:
            raise ValueError(f"betas up to {self.most_beta}: above 0, at most 2 is needed")

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
class SpreadGroup:
    """One of a state space's groups, of whose heads several ranks have some."""

    number: int
    groups: int
    """How many there are in the whole."""
    ranks: int
    """How many have heads of it."""


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
    spread: SpreadGroup | None = None
    """The group that heads here are of, where other ranks have the rest of it."""

    by_channel: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "groups", "state_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if self.heads % self.groups:
            raise ValueError(f"{self.heads} heads are not in {self.groups} equal groups")
        _check_taps(self.taps)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta:
    """Kimi Delta Attention (arXiv:2510.26692): the gated delta rule with a decay for each number of
    a key, behind a causal convolution over the last few tokens; a mixer that keeps a matrix for
    each head, and the inputs of the last ``taps - 1`` tokens."""

    heads: int
    head_dim: int
    """Numbers of a query, a key and a value."""
    taps: int
    """Tokens that an output of the convolution sees, its own included."""
    two_steps: bool = True
    """Decays and the gate come of as many numbers between as a head has; else in one step (Ling
    3)."""
    lowest: float | None = None
    """The logarithm of a decay is a part of this, below 0, by a sigmoid (GLM-5.3-Flash); None: it
    has no bound."""

    by_channel: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        _check_taps(self.taps)
        if self.lowest is not None and self.lowest >= 0:
            raise ValueError(f"logarithms of decays from {self.lowest} up, below 0 is needed")

    @property
    def rates_shape(self) -> tuple[int, ...]:
        """The shape in which checkpoints keep how fast heads forget."""
        bare = self.two_steps and self.lowest is None
        return (1, 1, self.heads, 1) if bare else (self.heads,)

    @property
    def size(self) -> int:
        """Numbers of a token in all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 3 * self.size

    @property
    def key_heads(self) -> int:
        return self.heads

    @property
    def value_heads(self) -> int:
        return self.heads

    @property
    def key_dim(self) -> int:
        return self.head_dim

    @property
    def value_dim(self) -> int:
        return self.head_dim

    def num_parameters(self, hidden: int) -> int:
        maps = hidden * (self.channels + self.heads) + self.size * hidden
        gates = 2 * (hidden * self.head_dim + self.head_dim * self.size)
        if not self.two_steps:
            gates = 2 * hidden * self.size
        own = self.heads + self.size + self.head_dim
        return maps + gates + self.channels * self.taps + own


OfMatrices = GatedDelta | KimiDelta | Mamba2
"""Mixers that keep a matrix for each head."""
Recurrent = ShortConv | OfMatrices


def _check_taps(taps: int) -> None:
    if not 2 <= taps <= MOST_TAPS:
        raise ValueError(f"a convolution over {taps} tokens, 2 to {MOST_TAPS} are served")
