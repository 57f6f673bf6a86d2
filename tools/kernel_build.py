"""One Triton kernel as it is launched somewhere, for whoever compiles it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One kernel as it is launched somewhere."""

    name: str
    kernel: Any
    types: dict[str, str]
    """Triton types of the arguments that are no constants, in order."""
    constants: dict[str, Any]
    num_warps: int
    num_stages: int = 3
    blocks_at_once: int = 1
    """Blocks of threads that a multiprocessor's registers must hold."""
    needs: str | None = None
    """An instruction that the code must contain."""
    fused: bool = True
    """False: products and sums must round one by one, as they do elsewhere."""
    max_registers: int = 255


def pointers(kind: str, *names: str) -> dict[str, str]:
    """Types of pointers to numbers of a kind, by the arguments' names without their ending."""
    return {f"{name}_ptr": f"*{kind}" for name in names}
