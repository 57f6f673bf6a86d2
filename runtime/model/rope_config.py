"""How positions are rotated, and how that is stretched to longer contexts. No torch here.

Always true: a ``RopeConfig`` that exists has frequencies (``runtime.model.rotary``).
"""

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "proportional"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its stretching."""

    theta: float = 10000.0
    kind: RopeKind = "default"
    rotated: int | None = None
    """How many dimensions of a head are rotated, its first ones; None: all. ``proportional``: the
    first pairs of the whole head, half a head apart, as fast as in a head that is rotated whole."""
    factor: float = 1.0
    """How many times the original context is stretched."""
    original_max_position: int = 0
    """Context the model was first trained at; llama3, yarn and ``query_beta`` need it."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above original / low_freq_factor are fully stretched."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths below original / high_freq_factor are left alone."""
    beta_fast: float = 32.0
    """yarn (Peng et al. 2023, arXiv:2309.00071): rotations above which nothing is stretched."""
    beta_slow: float = 1.0
    """yarn: rotations below which everything is stretched."""
    factors: tuple[float, ...] = ()
    """longrope (Ding et al. 2024, arXiv:2402.13753): how far each pair's wave is stretched."""
    attention_factor: float = 1.0
    """yarn, longrope: cosines and sines are multiplied by this."""
    truncate: bool = True
    """yarn: round the ramp's ends to whole dimensions."""
    query_beta: float = 0.0
    """Queries at position p are multiplied by 1 + query_beta * log(1 + p // original)."""

    def __post_init__(self) -> None:
        if self.theta <= 0 or self.factor < 1:
            raise ValueError(f"rope theta {self.theta} or factor {self.factor} out of bounds")
        stretched = self.kind in ("llama3", "yarn") or self.query_beta
        if stretched and self.original_max_position < 1:
            raise ValueError(f"rope {self.kind} needs original_max_position_embeddings")
        if self.kind == "yarn" and self.theta <= 1:
            raise ValueError(f"rope yarn needs a rope_theta above 1, not {self.theta}")
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("rope llama3 needs a high_freq_factor above low_freq_factor")
        if self.rotated is not None and (self.rotated < 2 or self.rotated % 2):
            raise ValueError(f"rope over {self.rotated} dimensions of a head: it turns pairs")
        if any(factor <= 0 for factor in self.factors):
            raise ValueError("rope stretched by a factor that is not above 0")


PLAIN_ROPE = RopeConfig()
"""Whole heads, at the usual speed."""
