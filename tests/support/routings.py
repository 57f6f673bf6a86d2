"""Routers' logits and ways of choosing experts, one of each kind that a family has."""

import torch
from torch import Tensor

from kernels.expert_routing import Routing

ROUTINGS: dict[str, tuple[int, Routing]] = {
    "softmax": (8, Routing(per_token=3)),
    "as it is": (5, Routing(per_token=2, normalise=False, scale=2.5)),
    "sigmoid": (12, Routing(per_token=4, scores="sigmoid", least_sum=1e-20, scale=1.5)),
    "groups": (
        24,
        Routing(per_token=5, scores="sigmoid", groups=6, chosen_groups=2, best_of_group=2),
    ),
    "best groups of softmax": (
        12,
        Routing(per_token=3, groups=4, chosen_groups=2, best_of_group=1, normalise=False),
    ),
    "one of one": (1, Routing(per_token=1)),
}
"""Numbers of experts and how they are chosen."""


def logits_and_correction(
    name: str, tokens: int, seed: int, *, corrected: bool
) -> tuple[Tensor, Tensor | None]:
    """float32 logits [tokens, experts], and a correction that counts."""
    experts, _ = ROUTINGS[name]
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(tokens, experts, generator=generator)
    return logits, torch.randn(experts, generator=generator) / 2 if corrected else None
