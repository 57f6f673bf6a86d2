"""Which experts a token takes, beside the same worked out one token at a time."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.model.config import LoadError, Router
from runtime.model.random_weights import RandomWeights
from runtime.model.router import ExpertRouter
from tests.support.reference import ReferenceModel

CPU = torch.device("cpu")
HIDDEN = 20
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax with biases": {"bias": True},
    "sigmoid": {"scores": "sigmoid"},
    "corrected": {"scores": "sigmoid", "correction": True},
    "groups": {"scores": "sigmoid", "correction": True, "groups": 4, "chosen_groups": 2},
    "scaled": {"scores": "sigmoid", "groups": 2, "chosen_groups": 1, "scale": 2.5},
    "roots of softplus, corrected": {"scores": "sqrt_softplus", "correction": True},
    "capped": {"scores": "sigmoid", "correction": True, "logit_cap": 0.4},
    "normed input, learnt scales": {"scaled": True},
}


def made(spec: Router, dtype: torch.dtype = torch.float64) -> ExpertRouter:
    return ExpertRouter(spec, "model.layers.1.mlp", HIDDEN, RandomWeights(0, dtype, CPU))


def by_hand(spec: Router, x: Tensor, ids: Tensor | None = None) -> Tensor:
    """[tokens, experts]: what each weighs."""
    reference = ReferenceModel.random("qwen3-tiny")
    return reference._routed("model.layers.1.mlp.gate", spec, x, ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("per_token", [1, 3, 4])
def test_weights_and_choices_are_those_worked_out_by_hand(
    kind: str, normalise: bool, per_token: int
) -> None:
    spec = Router(num_experts=12, per_token=per_token, normalise=normalise, **KINDS[kind])
    x = torch.randn(40, HIDDEN, dtype=torch.float64)
    weights, chosen = made(spec)(x)
    spread = torch.zeros(40, 12, dtype=torch.float64).scatter_(1, chosen, weights)
    assert torch.allclose(spread, by_hand(spec, x), rtol=1e-12, atol=1e-12)


def test_a_correction_counts_in_the_choice_and_not_in_the_weight() -> None:
    spec = Router(num_experts=12, per_token=2, scores="sigmoid", normalise=False, correction=True)
    router = made(spec)
    assert router.correction is not None
    router.correction.zero_()
    router.correction[[3, 7]] = 1e6
    x = torch.randn(9, HIDDEN, dtype=torch.float64)
    weights, chosen = router(x)
    assert chosen.sort(dim=-1).values.tolist() == [[3, 7]] * 9
    assert (weights < 1).all()


def test_no_expert_of_a_group_that_is_not_taken_is_taken_even_where_all_others_are_below_zero() -> (
    None
):
    """Sigmoids are above 0, but with their corrections they need not be."""
    spec = Router(
        num_experts=8,
        per_token=4,
        scores="sigmoid",
        normalise=True,
        correction=True,
        groups=4,
        chosen_groups=2,
    )
    router = made(spec)
    assert router.correction is not None
    router.correction.fill_(-50.0)
    router.correction[[2, 3]] = -10.0  # the second group has the best two
    router.correction[[0, 6]] = torch.tensor([-49.0, -5.0], dtype=torch.float64)
    _, chosen = router(torch.randn(9, HIDDEN, dtype=torch.float64))
    assert chosen.sort(dim=-1).values.tolist() == [[2, 3, 6, 7]] * 9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sigmoids_and_corrections_are_in_float32_whatever_the_model_is_in(
    dtype: torch.dtype,
) -> None:
    spec = Router(num_experts=6, per_token=2, scores="sigmoid", normalise=True, correction=True)
    router = made(spec, dtype)
    assert router.weight.dtype == torch.float32
    assert router.correction is not None
    assert router.correction.dtype == torch.float32
    assert router.like.dtype == dtype
    weights, _ = router(torch.randn(5, HIDDEN).to(dtype))
    assert weights.dtype == dtype


TABLE = Router(
    num_experts=12, per_token=3, scores="sqrt_softplus", normalise=True, scale=1.7, table_rows=30
)


def test_a_table_chooses_by_a_tokens_id_and_logits_weigh() -> None:
    x, ids = torch.randn(40, HIDDEN, dtype=torch.float64), torch.arange(40) % 30
    weights, chosen = made(TABLE)(x, ids)
    assert torch.equal(chosen[:10], chosen[30:])
    spread = torch.zeros(40, 12, dtype=torch.float64).scatter_(1, chosen, weights)
    assert torch.allclose(spread, by_hand(TABLE, x, ids), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wrong", [-1.0, 12.0, 0.5])
def test_a_table_with_other_numbers_than_those_of_experts_is_refused(wrong: float) -> None:
    class Spoiled(RandomWeights):
        def tensor(self, name: str, *args: Any, **own: Any) -> Tensor:
            values = super().tensor(name, *args, **own)
            if name.endswith("tid2eid"):
                values[7, 1] = wrong
            return values

    with pytest.raises(LoadError, match="tid2eid' has numbers other than those of experts, 0 to"):
        ExpertRouter(TABLE, "model.layers.1.mlp", HIDDEN, Spoiled(0, torch.float32, CPU))


@pytest.mark.parametrize("own", [{"correction": True}, {"scaled": True}, {"groups": 2}])
def test_a_table_and_a_choice_of_logits_do_not_go_together(own: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="experts that a table chooses, and a router that chooses"):
        replace(TABLE, **own)
