"""The optimiser: Muon for the layers' matrices, AdamW for everything else.

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) replaces a matrix's momentum by
the nearest orthogonal matrix, found with five Newton-Schulz steps. Matrices of one shape are
stacked, so that those steps are few batched products.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalised(stack: Tensor, steps: int = 5) -> Tensor:
    """Return the near-orthogonal factor of each matrix of ``stack`` [count, rows, columns]."""
    a, b, c = NEWTON_SCHULZ
    x = stack.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2).contiguous()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    out: Tensor = x.mT if tall else x
    return out


class MuonAdamW:
    """Steps both kinds of parameter; learning rates are given anew at each step."""

    def __init__(self, model: nn.Module, *, muon_lr: float, adamw_lr: float) -> None:
        self._muon_lr, self._adamw_lr = muon_lr, adamw_lr
        matrices = defaultdict(list)
        rest = []
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                matrices[tuple(parameter.shape)].append(parameter)
            else:
                rest.append(parameter)
        self._groups = list(matrices.values())
        self._momenta = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self._groups]
        self._adamw = torch.optim.AdamW(rest, lr=adamw_lr, betas=(0.9, 0.98), weight_decay=0.0)
        self._parameters = [p for g in self._groups for p in g] + rest

    def step(self, scale: float, momentum: float = 0.95) -> None:
        """Take one step with both learning rates times ``scale``, and clear gradients."""
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for group in self._adamw.param_groups:
            group["lr"] = self._adamw_lr * scale
        self._adamw.step()
        for parameters, buffer in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([p.grad for p in parameters if p.grad is not None])
            buffer.lerp_(gradient, 1 - momentum)
            update = orthogonalised(gradient.lerp(buffer, momentum))
            rows, columns = update.shape[1:]
            rate = self._muon_lr * scale * max(1.0, rows / columns) ** 0.5
            with torch.no_grad():
                for parameter, change in zip(parameters, update.float(), strict=True):
                    parameter.mul_(1 - 0.02 * rate).sub_(change, alpha=rate)
        for parameter in self._parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs to go on exactly."""
        return {"momenta": self._momenta, "adamw": self._adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state made by ``state_dict`` for a model of the same shape."""
        self._momenta = [m.clone() for m in state["momenta"]]
        self._adamw.load_state_dict(state["adamw"])
