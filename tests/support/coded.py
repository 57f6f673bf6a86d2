"""Random matrices of codes."""

from typing import get_args

import torch

from kernels.codes import CodeKind, Codes

KINDS: tuple[CodeKind, ...] = get_args(CodeKind)


def random_codes(
    kind: CodeKind, outputs: int, inputs: int, group: int, *, zeros: bool = False, seed: int
) -> Codes:
    """Every code but those that are no numbers; ``zeros`` where the kind has them."""
    draw = torch.Generator().manual_seed(seed)
    width = inputs if kind in ("int8", "e4m3") else inputs // 2
    values = torch.randint(0, 256, (outputs, width), dtype=torch.uint8, generator=draw)
    if kind == "e4m3":
        values[(values & 0x7F) == 0x7F] = 1
    groups = -(-inputs // group)
    scales = torch.rand(outputs, groups, generator=draw) + 0.01
    if kind == "e2m1":
        scales = torch.randint(110, 130, (outputs, groups), dtype=torch.uint8, generator=draw)
    middle = None
    if zeros and kind in ("int4", "int8"):
        low, high = (0, 17) if kind == "int4" else (-128, 128)
        middle = torch.randint(low, high, (outputs, groups), dtype=torch.int8, generator=draw)
    return Codes(kind=kind, values=values, scales=scales, zeros=middle, group=min(group, inputs))
