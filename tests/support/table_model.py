"""Models that a test can know by heart, in the place of an engine's model: the logits behind
a token depend on that token and its position alone, so laws and outputs can be written down."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from runtime.grammar.state import GrammarState
from runtime.messages import TokenArray
from runtime.model.batch import StepBatch
from runtime.scheduling.draft import Draft
from tests.support.engine_driver import EngineDriver

LogitsAt = Callable[[int, int], np.ndarray]
"""(token, its position) -> float64 [vocab]: logits of the token behind it."""


def replace_model(driver: EngineDriver, logits_at: LogitsAt) -> None:
    """Let the engine compute ``logits_at`` instead of its model. KV is reserved and published
    as ever, and holds nothing."""

    def forward(batch: StepBatch) -> Tensor:
        rows = [
            logits_at(int(batch.token_ids[row]), int(batch.positions[row]))
            for row in batch.logit_rows
        ]
        return torch.from_numpy(np.array(rows).reshape(len(rows), driver.tokenizer.vocab_size))

    driver.runner.forward = forward  # type: ignore[method-assign]


def scripted(text: list[int], vocab_size: int) -> LogitsAt:
    """A model that wants to say ``text[p]`` at position p, and token 0 behind the end."""

    def logits_at(token: int, position: int) -> np.ndarray:
        logits = np.zeros(vocab_size)
        logits[text[position + 1] if position + 1 < len(text) else 0] = 9.0
        return logits

    return logits_at


class FixedDrafts:
    """Proposes what a function of (transcript) says, whatever limit and grammar say."""

    num_bytes = 0

    def __init__(self, propose: Callable[[list[int]], list[int]]) -> None:
        self._propose = propose
        self.proposed: list[list[int]] = []
        self.verdicts: list[tuple[int, int]] = []

    def propose(
        self,
        branch_id: str,
        tenant: str,
        tokens: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Draft:
        draft = self._propose(tokens.tolist())
        if draft:
            self.proposed.append(draft)
        survival = tuple(0.9**n for n in range(1, len(draft) + 1))
        return Draft(tokens=np.array(draft, dtype=np.int32), sources=(), survival=survival)

    def verified(self, branch_id: str, verified: int, accepted: int) -> None:
        self.verdicts.append((verified, accepted))

    def remember(self, tenant: str, output: TokenArray) -> None: ...

    def close(self, branch_id: str) -> None: ...
