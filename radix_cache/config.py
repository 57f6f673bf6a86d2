"""The knobs of the prefix cache: sizes, times and shares, checked.

Knows no clock, no cost and no mover: what does something is handed to the cache itself. Always
true: a configuration that exists makes sense by itself.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Policy = Literal["lease", "lru"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How a prefix cache is to be run.

    Raises:
        ValueError: a size or time that makes no sense.
    """

    num_blocks: int
    """Size of the pool on the device."""
    block_size: int = 16
    """Tokens per block."""
    policy: Policy = "lease"
    """``lru``: leases and queued branches protect nothing."""
    reserve_blocks: int = 0
    """Free blocks that only sequences may take which have some already."""
    lease_cap_s: float = 120.0
    """No lease is longer."""
    kappa: float = 20.0
    """Seconds of lease per second that restoring the transcript would cost."""
    rescue_share: float = 0.0
    """A sequence that is alone waits for leases that end within this share of the time that
    computing its prompt takes, before it breaks any."""
    ghost_records: int = 16384
    """Evicted runs remembered for the account of misses."""
    host_blocks: int = 0
    """Blocks of host memory below the device; 0 for none."""
    disk_blocks: int = 0
    """Blocks of disk below that; needs host blocks."""
    state_slots: int = 0
    """Slots for states of recurrent layers; 0 for a model without any."""
    host_states: int = 0
    """Slots for states in host memory; 0 for none. Needs host blocks."""
    disk_states: int = 0
    """Slots for states on disk; needs those, and disk blocks."""
    running_slots: int = 0
    """Sequences that may run at a time; 0 for as many as there are slots."""
    slot_blocks: int = 1
    """Blocks of which a slot takes the memory."""
    window_blocks: int = 0
    """Blocks that rows of layers with a window have room for; 0: every block has it."""
    window_tokens: int = 0
    """Tokens that such a layer sees."""
    host_window_blocks: int = 0
    """Host blocks that rows of such layers have room for; asked for where there are window blocks
    and host blocks."""
    step_tokens: int = 0
    """Tokens of one step at most, drafts included; asked for where there are window blocks."""
    seed: int = 0
    """Mixed into the hashes that find children."""
    debug: bool = False
    """Check every invariant after every call."""

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise ValueError(f"a pool of {self.num_blocks} blocks, at least 1 is needed")
        if self.block_size < 1:
            raise ValueError(f"a block of {self.block_size} tokens, at least 1 is needed")
        if self.policy not in get_args(Policy):
            raise ValueError(f"cache policy {self.policy!r}: 'lease' or 'lru'")
        if not 0 <= self.reserve_blocks < self.num_blocks:
            raise ValueError(f"a reserve of {self.reserve_blocks} of {self.num_blocks} blocks")
        if self.lease_cap_s < 0 or self.kappa < 0:
            raise ValueError(
                f"a lease cap of {self.lease_cap_s} s, kappa {self.kappa}: neither may be negative"
            )
        if self.rescue_share < 0:
            raise ValueError(f"a rescue share of {self.rescue_share}, it may not be negative")
        if self.ghost_records < 0:
            raise ValueError(f"{self.ghost_records} ghost records")
        if self.state_slots < 0 or self.slot_blocks < 1:
            raise ValueError(f"{self.state_slots} state slots of {self.slot_blocks} blocks each")
        for states, blocks, above in (
            (self.host_states, self.host_blocks, self.state_slots),
            (self.disk_states, self.disk_blocks, self.host_states),
        ):
            if states < 0 or (states and not (blocks and above)):
                raise ValueError(
                    f"{states} slots for states beside {blocks} blocks and below {above} slots: "
                    "states are kept below the device beside blocks, and tier by tier"
                )
        self._check_windows()
        unreached = self.disk_blocks and not self.host_blocks
        if self.host_blocks < 0 or self.disk_blocks < 0 or unreached:
            raise ValueError(
                f"{self.host_blocks} host and {self.disk_blocks} disk blocks: the disk is reached "
                "through host memory, so at least 1 host block is needed"
            )

    def _check_windows(self) -> None:
        if not self.window_blocks:
            return
        if self.window_tokens < 1 or self.step_tokens < 1 or self.window_blocks < 0:
            raise ValueError(
                f"{self.window_blocks} window blocks for windows of {self.window_tokens} tokens "
                f"and steps of {self.step_tokens}"
            )
        if self.state_slots:
            raise ValueError("window blocks beside slots for states")
        if (self.host_blocks > 0) != (self.host_window_blocks > 0):
            raise ValueError(
                f"{self.host_window_blocks} of {self.host_blocks} host blocks have room for rows "
                "of layers with a window"
            )
