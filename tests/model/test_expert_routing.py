"""Experts of tokens: chosen, sorted, and what they made found again."""

import pytest
import torch

from kernels.expert_routing import (
    combined,
    combined_reference,
    route,
    route_reference,
    sorted_picks,
    sorted_picks_reference,
)
from tests.support.routings import ROUTINGS, logits_and_correction


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", ROUTINGS)
def test_the_best_are_chosen_and_weighed_by_their_scores(name: str, corrected: bool) -> None:
    experts, routing = ROUTINGS[name]
    logits, correction = logits_and_correction(name, 20, 1, corrected=corrected)
    for choose in (route, route_reference):
        weights, chosen = choose(logits, correction, routing, torch.float64)
        assert weights.shape == chosen.shape == (20, routing.per_token)
        for row, taken, shares in zip(logits, chosen.tolist(), weights.tolist(), strict=True):
            scores = row.sigmoid() if routing.scores == "sigmoid" else row.softmax(0)
            choice = (scores if correction is None else scores + correction).tolist()
            size = experts // routing.groups
            groups = [choice[first : first + size] for first in range(0, experts, size)]
            best = sorted(
                range(routing.groups),
                key=lambda g: -sum(sorted(groups[g])[-min(routing.best_of_group, size) :]),
            )[: routing.chosen_groups]
            open_ones = [e for e in range(experts) if routing.groups == 1 or e // size in best]
            wanted = sorted(open_ones, key=lambda e: -choice[e])[: routing.per_token]
            assert taken == wanted
            total = sum(float(scores[e]) for e in wanted) + routing.least_sum
            by = routing.scale / (total if routing.normalise else 1)
            assert shares == pytest.approx([float(scores[e]) * by for e in wanted], rel=1e-5)


@pytest.mark.parametrize(("tokens", "taken", "experts"), [(1, 1, 1), (7, 3, 5), (40, 2, 9)])
def test_picks_are_found_by_expert_and_by_token(tokens: int, taken: int, experts: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    chosen = torch.randint(0, experts, (tokens, taken), generator=generator)
    for sort in (sorted_picks_reference, lambda c, e: sorted_picks(c, e, torch.zeros(1))):
        picks = sort(chosen, experts)
        for expert in range(experts):
            own = picks.rows[picks.starts[expert] : picks.starts[expert + 1]].tolist()
            assert own == [t for t, row in enumerate(chosen.tolist()) for e in row if e == expert]
        by_place = chosen.flatten().sort(stable=True).values
        assert torch.equal(by_place[picks.places], chosen)
        assert torch.equal(
            picks.rows[picks.places], torch.arange(tokens)[:, None].expand(-1, taken)
        )


def test_parts_are_added_up_but_for_those_that_nobody_made() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    places = torch.randperm(8, generator=generator).view(4, 2)
    weights = torch.rand(4, 2, generator=generator, dtype=torch.float64)
    mine = torch.tensor([[True, False], [True, True], [False, False], [False, True]])
    wanted = [
        sum((float(w) * parts[p] for p, w, m in zip(*row, strict=True) if m), torch.zeros(5))
        for row in zip(places, weights, mine, strict=True)
    ]
    parts[places[~mine]] = torch.nan
    for add in (combined, combined_reference):
        assert torch.allclose(add(parts, places, weights, mine), torch.stack(wanted))
        assert add(parts, places, weights)[1].isfinite().all()
