"""Batches of token sequences: sessions of a curriculum's stage, and drills of random tokens.

The same seed and pool give the same batches for ever; a pool is what a training run does not
stop inside.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.recalls import recalled_arguments, recalled_names
from examples.train_agent_model.rendering import (
    NO_LABEL,
    Encoded,
    Label,
    SessionEncoder,
    session_parts,
)
from examples.train_agent_model.tokenizer import SPECIAL

SESSIONS_PER_POOL = 48
MAX_SESSION_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the curriculum; it ends when the loss is low or its time is over."""

    level: float
    """Difficulty of the sessions, see ``SessionGenerator``."""

    drill_share: float
    """Share of the batches that are repeated random tokens."""

    batch_tokens: int
    """Tokens of one step, all processes together, padding included; before the phase changes steps
    count, not tokens."""

    prompt_weight: float
    """Weight of predicting the prompt: names said twice in a schema are dense practice."""

    until_loss: float
    latest_end: float
    """Share of the training time after which the next stage starts in any case."""

    hard: bool = False
    """Sessions are hard ones, see ``SessionGenerator``."""

    recalls: int = 0
    """Rows of a pool beside its sessions that are recalls, see ``recalls``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences of one step, padded to the longest."""

    tokens: Tensor
    """[rows, length] int64."""

    weights: Tensor
    """[rows, length] float32: weight of predicting this token; 0 for padding."""

    labels: dict[Label, Tensor]
    """Of each kind [rows, length] int64: those of ``Encoded``, NO_LABEL for padding."""

    drill: bool = False

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on ``device``."""
        return replace(
            self,
            tokens=self.tokens.to(device),
            weights=self.weights.to(device),
            labels={label: values.to(device) for label, values in self.labels.items()},
        )


def pad(rows: list[Encoded], *, drill: bool = False, prompt_weight: float = 0.0) -> Batch:
    """Stack rows into a batch; tokens without weight get ``prompt_weight``, padding none."""
    length = max(len(row.ids) for row in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    weights = torch.zeros(len(rows), length)
    labels = {label: torch.full((len(rows), length), NO_LABEL) for label in Label}
    for number, row in enumerate(rows):
        stop = len(row.ids)
        tokens[number, :stop] = torch.from_numpy(row.ids)
        weights[number, :stop] = torch.from_numpy(row.weights).clamp(min=prompt_weight)
        for label, values in row.labels.items():
            labels[label][number, :stop] = torch.from_numpy(values)
    return Batch(tokens=tokens, weights=weights, labels=labels, drill=drill)


def drill(rng: np.random.Generator, vocab_size: int, batch_tokens: int) -> Batch:
    """Make rows of random tokens: runs said twice, and words sought in a list of words.

    The first are copying practice for every token, the second practice for ``Label.KNOWN``.
    """
    length = int(rng.choice((24, 32, 48, 96)))
    rows = [
        _sought_words(rng, vocab_size, length) if row % 2 else _run_twice(rng, vocab_size, length)
        for row in range(max(2, batch_tokens // length))
    ]
    return pad(rows, drill=True)


def _run_twice(rng: np.random.Generator, vocab_size: int, length: int) -> Encoded:
    run = rng.integers(len(SPECIAL), vocab_size, int(rng.integers(length // 6, length // 2)))
    ids = np.resize(run, length).astype(np.int32)
    weights = (np.arange(length) > len(run)).astype(np.float32)
    return Encoded(ids=ids, weights=weights, labels={})


def _sought_words(rng: np.random.Generator, vocab_size: int, length: int) -> Encoded:
    """List words of one to three tokens, then name some of the list and some near misses."""

    def draw(count: int) -> list[int]:
        drawn: list[int] = rng.integers(len(SPECIAL), vocab_size, count).tolist()
        return drawn

    (separator,) = draw(1)
    ids, listed = [separator], list[list[int]]()
    while len(ids) < length // 2:
        listed.append(draw(int(rng.choice((1, 2, 2, 3)))))
        ids += [*listed[-1], separator]
    known = [NO_LABEL] * len(ids)
    while len(ids) < length:
        word = list(listed[rng.integers(len(listed))])
        if rng.random() < 0.5:
            places = range(len(word)) if rng.random() < 0.3 else [rng.integers(len(word))]
            for place in places:
                word[place] = draw(1)[0]
        ids += [*word, separator]
        known += [NO_LABEL] * (len(word) - 1) + [int(word in listed), NO_LABEL]
    return Encoded(
        ids=np.array(ids[:length], np.int32),
        weights=np.zeros(length, np.float32),
        labels={Label.KNOWN: np.array(known[:length], np.int32)},
    )


def pool_rows(
    encoder: SessionEncoder, stage: Stage, seed: int, number: int, pool: int
) -> list[Encoded]:
    """Make the sessions of a pool of ``stage``, the training's stage ``number``, and its recalls of
    arguments and names: shortest first."""
    name = f"{seed}/{number}/{pool}"
    generator = SessionGenerator(f"train/{name}", held_out=False, hard=stage.hard)
    rng = random.Random(f"levels/{name}")
    rows = []
    for _ in range(SESSIONS_PER_POOL):
        level = stage.level if rng.random() < 0.7 else stage.level * rng.random()
        row = encoder.encode(session_parts(generator.session(level=level)))
        if len(row.ids) <= MAX_SESSION_TOKENS:
            rows.append(row)
    for recall in range(stage.recalls):
        render = recalled_names if recall % 4 else recalled_arguments
        rows.append(encoder.encode(render(*generator.recall())))
    return sorted(rows, key=lambda row: len(row.ids))


def batches(
    rows: list[Encoded],
    stage: Stage,
    vocab_size: int,
    seed: tuple[int, ...],
    *,
    share: int = 0,
    shares: int = 1,
) -> Iterator[Batch]:
    """Make the batches of one pool: lengths alike within a batch, order shuffled.

    Of ``shares`` processes each takes an equal part of a step's tokens: one batch of as many that
    are alike in length; of the shortest some may be left out.

    Args:
        rows: as ``pool_rows`` made them.
        seed: of the pool's drills and order.
    """
    batch_tokens = stage.batch_tokens // shares
    made = _of_rows(rows, batch_tokens, stage.prompt_weight)
    rng, drills = random.Random(repr(seed)), np.random.default_rng(seed)
    ratio = stage.drill_share / (1 - stage.drill_share)
    for _ in range(int(len(made) * ratio + rng.random())):
        made.append(drill(drills, vocab_size, batch_tokens))
    first = len(made) % shares
    steps = [made[start : start + shares] for start in range(first, len(made), shares)]
    rng.shuffle(steps)
    yield from (step[share] for step in steps)


def _of_rows(rows: list[Encoded], batch_tokens: int, prompt_weight: float) -> list[Batch]:
    made: list[Batch] = []
    waiting: list[Encoded] = []
    for row in rows:
        if waiting and (len(waiting) + 1) * len(row.ids) > batch_tokens:
            made.append(pad(waiting, prompt_weight=prompt_weight))
            waiting = []
        waiting.append(row)
    made.append(pad(waiting, prompt_weight=prompt_weight))
    return made
