"""How often, and after which waits, something is tried again.

Always true: tries are bounded, and no two clients that lost the same server come back in step.
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Bounds on trying again, of a lost turn or of a tool that raised."""

    tries: int = 12
    """Further tries after the first; 0 for none."""
    first_wait_s: float = 0.1
    """Before the first try that waits; each further wait doubles."""
    longest_wait_s: float = 8.0

    def __post_init__(self) -> None:
        if self.tries < 0 or not 0 <= self.first_wait_s <= self.longest_wait_s:
            raise ValueError(f"{self} has no tries or waits to keep to")

    def wait_s(self, number: int, draw: random.Random) -> float:
        """The wait before try ``number``, from 0: between half and all of what doubling gives."""
        whole = min(self.first_wait_s * 2.0 ** min(number, 60), self.longest_wait_s)
        return whole * draw.uniform(0.5, 1.0)
