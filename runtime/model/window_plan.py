"""How many blocks layers with a window have, where rows behind windows are given back.

The more, the more places of transcripts can be begun at, and the fewer tokens all layers have room
for. Arithmetic, no torch.
"""

from fractions import Fraction

from radix_cache.window_rows import claim_of, kept_for
from runtime.config import EngineConfig

TRANSCRIPT_TOKENS = 8192
"""Of transcripts of so many tokens each keeps two places that can be begun at."""
_LEAST_SHARE, _MOST_SHARE = Fraction(1, 16), Fraction(1, 2)
_RUNNING = 8
"""At least so many sequences can run at a time, or ``max_running``."""


def tokens_of_step(config: EngineConfig) -> int:
    """Tokens that one step computes at most, drafts included."""
    return config.max_batch_tokens + config.draft_tokens_per_step


def window_share(config: EngineConfig, window: int) -> Fraction:
    """The part of the blocks of transcripts that has room for rows of a window."""
    if config.window_share is not None:
        return Fraction(config.window_share, 100)
    return min(max(Fraction(2 * window, TRANSCRIPT_TOKENS), _LEAST_SHARE), _MOST_SHARE)


def plan_windows(
    config: EngineConfig, window: int, parts: tuple[int, int], budget: int
) -> tuple[int, int] | None:
    """Blocks of all layers, and of those with a window.

    Args:
        window: tokens that a layer sees, of several the most.
        parts: memory of a block over the layers that see all, and over those with a window.
        budget: bytes for both; not asked where ``config`` says how many blocks there are.

    Returns:
        None where every block may as well have rows of all layers: it would take no more memory.
    """
    size = config.block_size
    claim = claim_of(window, size)
    least = min(config.max_running, _RUNNING) * claim + -(-tokens_of_step(config) // size)
    share = window_share(config, window)
    every, near = parts
    num_blocks = config.num_blocks
    if num_blocks is None:
        num_blocks = int((budget - least * near) / (every + share * near))
    window_blocks = least + int(num_blocks * share)
    if num_blocks < 2 or window_blocks >= num_blocks:
        return None
    return num_blocks, window_blocks


def plan_windows_below(
    config: EngineConfig, window: int, parts: tuple[int, int], budget: int
) -> tuple[int, int]:
    """The same of host memory, where the device's rows behind windows are given back: the share of
    blocks that have room for rows of a window is that of the device, and one window has it at
    least. No sequence runs there.

    Returns:
        Blocks, and those of them that have such room; (0, 0) where ``budget`` is too little for one
        of all rows.
    """
    every, near = parts
    least = kept_for(window, config.block_size)
    share = window_share(config, window)
    num_blocks = int((budget - least * near) / (every + share * near))
    window_blocks = least + int(num_blocks * share)
    if window_blocks < num_blocks:
        return num_blocks, window_blocks
    all_rows = budget // (every + near)
    return all_rows, all_rows
