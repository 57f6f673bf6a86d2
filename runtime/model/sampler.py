"""From a step's logits to tokens by ``kernels.masked_sampling``, and log-probabilities.

Rows are independent: the same row gives the same token in any batch. What the tokens mean
for a sequence (accepted draft, end of turn) is the engine's business.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.masked_sampling import (
    NO_TOKEN,
    NOT_FINITE,
    Penalties,
    SamplingBatch,
    allowed_tokens,
)
from kernels.masked_sampling import sample as draw
from kernels.upload import upload
from runtime.messages import SamplingParams, TokenArray, TokenLogprob

_FEW_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """How the token after one row of logits is drawn."""

    params: SamplingParams
    position: int
    """Position of the drawn token in its sequence; with the seed it keys the randomness."""
    emitted: TokenArray | None = None
    """int32: tokens this sequence has emitted so far; only penalties look at them."""
    mask: npt.NDArray[np.int32] | None = None
    """[ceil(vocab / 32)] packed allowed tokens; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The sampled tokens, one for each row of logits."""

    tokens: TokenArray
    """int32; NO_TOKEN where the row's logits are not finite or its mask allows nothing."""
    finite: npt.NDArray[np.bool_]
    """False: the model produced NaN or infinity in this row."""
    logprobs: tuple[TokenLogprob | None, ...]
    """Under the model's distribution over the tokens that the mask allows, before penalties
    and temperature; None where the row did not ask."""


class Drawing:
    """A draw of one token for each row of logits, under way where the logits are.

    Order: penalties, grammar mask, temperature, top-k, top-p, min-p, draw. Log-probabilities
    are begun as well: when the constructor returns, the logits have been asked for all.
    """

    def __init__(self, logits: Tensor, rows: Sequence[SampleRow]) -> None:
        """Begin to draw from ``logits`` [rows, vocab], which are not changed.

        Raises:
            ValueError: the number of rows differs.
        """
        if logits.shape[0] != len(rows):
            raise ValueError(f"{logits.shape[0]} rows of logits for {len(rows)} of parameters")
        self.tokens: Tensor = draw(logits, _batch(rows))
        """[rows] int64 on the device; below zero where no token can be drawn."""
        self._on_host = _on_its_way(self.tokens)
        self._likely = [
            None
            if row.params.top_logprobs is None
            else _begin_logprob(logits[index], self.tokens[index : index + 1], row)
            for index, row in enumerate(rows)
        ]
        self._arrived: Any = None
        if self.tokens.device.type == "cuda":
            cuda: Any = torch.cuda  # its events have no types
            self._arrived = cuda.Event()
            self._arrived.record()
        self._result: Sampled | None = None

    def result(self) -> Sampled:
        """The drawn tokens; waits for it, and for nothing that was begun later."""
        if self._result is None:
            self._result = self._finish()
        return self._result

    def _finish(self) -> Sampled:
        if self._arrived is not None:
            self._arrived.synchronize()
        tokens = self._on_host.numpy().astype(np.int32)
        finite = tokens != NOT_FINITE
        np.maximum(tokens, NO_TOKEN, out=tokens)
        return Sampled(
            tokens=tokens,
            finite=finite,
            logprobs=tuple(
                [
                    None if likely is None or token == NO_TOKEN else _logprob(token, *likely)
                    for token, likely in zip(tokens.tolist(), self._likely, strict=True)
                ]
            ),
        )


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> Sampled:
    """Draw one token for each row: a ``Drawing`` and its result."""
    return Drawing(logits, rows).result()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The parameters that were asked for, one entry per row, as ``SamplingBatch`` has it; read
    only."""

    temperature: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    top_p: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float64]
    seeds: npt.NDArray[np.uint64]


def _asked(params: tuple[SamplingParams, ...]) -> _Asked:
    seeds = [item.seed & 0xFFFF_FFFF_FFFF_FFFF for item in params]
    asked = _Asked(
        temperature=np.array([item.temperature for item in params], dtype=np.float64),
        top_k=np.array([item.top_k for item in params], dtype=np.int64),
        top_p=np.array([item.top_p for item in params], dtype=np.float64),
        min_p=np.array([item.min_p for item in params], dtype=np.float64),
        seeds=np.array(seeds, dtype=np.uint64),
    )
    for array in (asked.temperature, asked.top_k, asked.top_p, asked.min_p, asked.seeds):
        array.flags.writeable = False
    return asked


_asked_again = functools.lru_cache(maxsize=64)(_asked)
"""Most steps ask for what the last one did. For few rows that is found faster than made."""


def _batch(rows: Sequence[SampleRow]) -> SamplingBatch:
    ask = _asked_again if len(rows) <= _FEW_ROWS else _asked
    asked = ask(tuple([row.params for row in rows]))
    has_mask = [row.mask is not None for row in rows]
    masks: Tensor | None = None
    if any(has_mask):
        words = max(len(row.mask) for row in rows if row.mask is not None)
        packed = np.zeros((len(rows), words), dtype=np.int32)
        for index, row in enumerate(rows):
            if row.mask is not None:
                packed[index, : len(row.mask)] = row.mask
        masks = torch.from_numpy(packed)
    return SamplingBatch(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
        seeds=asked.seeds,
        positions=np.array([row.position for row in rows], dtype=np.uint64),
        masks=masks,
        masked=np.array(has_mask, dtype=np.bool_),
        penalties=_penalties(rows),
    )


def _penalties(rows: Sequence[SampleRow]) -> Penalties | None:
    """For every token a row has emitted: repetition is a factor, presence is deducted once and
    frequency for each time. None where no row has any."""
    parts = []
    for index, row in enumerate(rows):
        params = row.params
        if not params.penalises or row.emitted is None or not len(row.emitted):
            continue
        tokens, counts = np.unique(row.emitted, return_counts=True)
        deductions = params.frequency_penalty * counts + params.presence_penalty
        factors = np.full(len(tokens), params.repetition_penalty)
        parts.append((np.full(len(tokens), index), tokens, factors, deductions))
    if not parts:
        return None
    at, tokens, factors, deductions = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Penalties(
        rows=at.astype(np.int64),
        tokens=tokens.astype(np.int64),
        factors=factors.astype(np.float64),
        deductions=deductions.astype(np.float64),
    )


def _begin_logprob(logits: Tensor, token: Tensor, row: SampleRow) -> tuple[Tensor, Tensor]:
    """On their way to the host: log-probabilities of ``token`` [1] and of the likeliest ones
    behind it, and which ones these are."""
    top, choices = row.params.top_logprobs, logits.numel()
    assert top is not None
    if row.mask is not None:
        allowed = allowed_tokens(torch.from_numpy(row.mask), choices)
        choices = int(allowed.sum())
        logits = logits.masked_fill(~upload(allowed, logits.device), -torch.inf)
    logprobs = logits.log_softmax(-1)
    best = logprobs.topk(min(top, choices))
    drawn = logprobs.gather(0, token.clamp(min=0))
    return _on_its_way(torch.cat((drawn, best.values))), _on_its_way(best.indices)


def _logprob(token: int, values: Tensor, best: Tensor) -> TokenLogprob:
    drawn, *others = values.tolist()
    return TokenLogprob(
        token=token, logprob=drawn, top=tuple(zip(best.tolist(), others, strict=True))
    )


def _on_its_way(tensor: Tensor) -> Tensor:
    """The same on the host; on a GPU it is there when the stream has got so far."""
    if tensor.device.type != "cuda":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
