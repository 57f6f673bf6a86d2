"""What a draft says of its tokens, and which drafts a step has room for."""

import numpy as np
import pytest

from runtime.drafts import Draft, DraftSource, share_budget


def chain(*survival: float) -> Draft:
    tokens = np.arange(len(survival), dtype=np.int32)
    return Draft(tokens=tokens, sources=(DraftSource.SESSION,) * len(survival), survival=survival)


@pytest.mark.parametrize(
    ("budget", "shares"),
    [
        (9, {"a": 3, "b": 2, "c": 3}),
        (8, {"a": 3, "b": 2, "c": 3}),
        (5, {"a": 2, "c": 3}),
        (4, {"a": 1, "c": 3}),
        (2, {"a": 1, "c": 1}),
        (0, {}),
    ],
)
def test_a_step_takes_the_draft_tokens_most_likely_to_be_right(
    budget: int, shares: dict[str, int]
) -> None:
    drafts = {"a": chain(0.9, 0.6, 0.3), "b": chain(0.4, 0.4), "c": chain(0.9, 0.8, 0.8)}
    taken = share_budget(drafts, budget)
    assert {name: len(draft.tokens) for name, draft in taken.items()} == shares
    for name, draft in taken.items():
        count = len(draft.tokens)
        assert draft.tokens.tolist() == drafts[name].tokens[:count].tolist()
        assert draft.survival == drafts[name].survival[:count]


def test_a_draft_knows_which_of_its_tokens_are_forced() -> None:
    forced, copied = DraftSource.FORCED, DraftSource.SESSION
    draft = Draft(
        tokens=np.array([1, 2, 3, 4], dtype=np.int32),
        sources=(copied, forced, copied, forced),
        survival=(0.9, 0.9, 0.8, 0.8),
    )
    assert draft.certain(4) == draft.cut(4).certain(9) == (1, 3)
    assert draft.certain(3) == draft.cut(3).certain(4) == (1,)
