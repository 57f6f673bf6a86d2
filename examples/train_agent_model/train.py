"""The training loop: a curriculum of generated sessions, stopped and resumed at will.

    python -m examples.train_agent_model.train --folder /tmp/agent --minutes 90

The folder gets ``tokenizer.json``, ``checkpoint.pt`` (model, optimiser, position in the data)
and ``curve.csv``. Started again with the same folder it goes on where it stopped. The learning
rate and the latest start of each stage follow the share of the training time that is spent.
"""

import argparse
import csv
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm

from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.model import AgentModel, ModelShape
from examples.train_agent_model.optimizer import MuonAdamW
from examples.train_agent_model.rendering import SessionEncoder, session_parts
from examples.train_agent_model.tokenizer import SPECIAL, save_tokenizer, train_tokenizer

TOKENIZER_SESSIONS = 5000
SESSIONS_PER_POOL = 24
MAX_SESSION_TOKENS = 2048
WARM_UP_STEPS = 50
DECAY_SHARE = 0.55
SAVE_EVERY_S = 60.0
LONGEST_STEP_S = 2.0
"""What a step counts at most: a machine that stalls must not use up the schedule."""


Row = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""Token ids and loss weights of one sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the curriculum; it ends when the loss is low or its time is over."""

    level: float
    """Difficulty of the sessions, see ``SessionGenerator``."""

    drill_share: float
    """Share of the batches that are repeated random tokens."""

    batch_tokens: int
    """Tokens of one step, padding included; before the phase changes steps count, not tokens."""

    prompt_weight: float
    """Weight of predicting the prompt: names said twice in a schema are dense practice."""

    until_loss: float
    latest_end: float
    """Share of the training time after which the next stage starts in any case."""


STAGES = (
    Stage(
        level=0.0,
        drill_share=0.85,
        batch_tokens=1280,
        prompt_weight=0.25,
        until_loss=1.5,
        latest_end=0.12,
    ),
    Stage(
        level=0.0,
        drill_share=0.4,
        batch_tokens=1280,
        prompt_weight=0.25,
        until_loss=0.0,
        latest_end=0.2,
    ),
    Stage(
        level=0.09,
        drill_share=0.1,
        batch_tokens=1280,
        prompt_weight=0.25,
        until_loss=0.0,
        latest_end=0.28,
    ),
    Stage(
        level=0.15,
        drill_share=0.03,
        batch_tokens=2048,
        prompt_weight=0.2,
        until_loss=0.0,
        latest_end=0.45,
    ),
    Stage(
        level=0.35,
        drill_share=0.02,
        batch_tokens=2048,
        prompt_weight=0.1,
        until_loss=0.0,
        latest_end=0.55,
    ),
    Stage(
        level=0.6,
        drill_share=0.01,
        batch_tokens=2048,
        prompt_weight=0.02,
        until_loss=0.0,
        latest_end=0.65,
    ),
    Stage(
        level=1.0,
        drill_share=0.01,
        batch_tokens=2048,
        prompt_weight=0.0,
        until_loss=0.0,
        latest_end=2.0,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences of one step, padded to the longest."""

    tokens: Tensor
    """[rows, length] int64."""

    weights: Tensor
    """[rows, length] float32: weight of predicting this token; 0 for padding."""

    drill: bool = False


def build_tokenizer(folder: Path, vocab_size: int, seed: int) -> Tokenizer:
    """Load the folder's tokenizer, or train it on generated sessions and store it."""
    path = folder / "tokenizer.json"
    if not path.exists():
        generator = SessionGenerator(f"tokenizer/{seed}", held_out=False)
        texts = (
            part.text
            for _ in range(TOKENIZER_SESSIONS)
            for part in session_parts(generator.session(level=0.6, num_questions=3))
            if not part.special
        )
        save_tokenizer(train_tokenizer(texts, vocab_size), folder)
    return Tokenizer.from_file(str(path))


def pad(rows: list[Row], *, drill: bool = False, prompt_weight: float = 0.0) -> Batch:
    """Stack rows into a batch; tokens without weight get ``prompt_weight``, padding none."""
    length = max(len(ids) for ids, _ in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    weights = torch.zeros(len(rows), length)
    for row, (ids, weight) in enumerate(rows):
        tokens[row, : len(ids)] = torch.from_numpy(ids)
        weights[row, : len(ids)] = torch.from_numpy(weight).clamp(min=prompt_weight)
    return Batch(tokens=tokens, weights=weights, drill=drill)


def drill(rng: np.random.Generator, vocab_size: int, batch_tokens: int) -> Batch:
    """Make rows of random token runs, each said twice: copying practice for every token."""
    rows: list[Row] = []
    length = int(rng.choice((24, 32, 48, 96)))
    for _ in range(max(1, batch_tokens // length)):
        run = rng.integers(len(SPECIAL), vocab_size, int(rng.integers(length // 6, length // 2)))
        ids = np.resize(run, length)
        weights = (np.arange(length) > len(run)).astype(np.float32)
        rows.append((ids.astype(np.int32), weights))
    return pad(rows, drill=True)


def batches(encoder: SessionEncoder, stage: Stage, seed: int, pool: int) -> Iterator[Batch]:
    """Make the batches of one pool of sessions: lengths alike within a batch, order shuffled."""
    generator = SessionGenerator(f"train/{seed}/{pool}", held_out=False)
    rng = random.Random(f"{seed}/{pool}")
    rows = []
    for _ in range(SESSIONS_PER_POOL):
        level = stage.level if rng.random() < 0.7 else stage.level * rng.random()
        row = encoder.encode(session_parts(generator.session(level=level)))
        if len(row[0]) <= MAX_SESSION_TOKENS:
            rows.append(row)
    rows.sort(key=lambda row: len(row[0]))
    made: list[Batch] = []
    waiting: list[Row] = []
    for row in rows:
        if waiting and (len(waiting) + 1) * len(row[0]) > stage.batch_tokens:
            made.append(pad(waiting, prompt_weight=stage.prompt_weight))
            waiting = []
        waiting.append(row)
    made.append(pad(waiting, prompt_weight=stage.prompt_weight))
    drills = np.random.default_rng([seed, pool])
    share = stage.drill_share / (1 - stage.drill_share)
    for _ in range(int(len(made) * share + rng.random())):
        made.append(drill(drills, encoder.vocab_size, stage.batch_tokens))
    rng.shuffle(made)
    yield from made


def batch_loss(model: AgentModel, batch: Batch, *, autocast: bool) -> Tensor:
    """Return the weighted mean loss of predicting each weighted token from those before it."""
    weights = batch.weights[:, 1:].reshape(-1)
    chosen = weights.nonzero().squeeze(1)
    device = batch.tokens.device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
        hidden = model.hidden(batch.tokens[:, :-1]).flatten(0, 1)
        logits = model.logits(hidden[chosen])
    losses = F.cross_entropy(logits, batch.tokens[:, 1:].reshape(-1)[chosen], reduction="none")
    return (losses * weights[chosen]).sum() / weights[chosen].sum()


def learning_scale(progress: float, step: int) -> float:
    """Return the factor on the learning rates: warm-up, plateau, linear decay."""
    return min(1.0, (step + 1) / WARM_UP_STEPS, max(0.01, (1 - progress) / DECAY_SHARE))


@torch.no_grad()
def forced_scores(model: AgentModel, encoder: SessionEncoder, sessions: int) -> dict[str, float]:
    """Score held-out sessions with the right history given: share of turns wholly right."""
    generator = SessionGenerator("forced", held_out=True)
    right: dict[str, list[bool]] = {"call": [], "answer": []}
    for _ in range(sessions):
        ids, weights = encoder.encode(session_parts(generator.session(num_questions=4)))
        tokens = torch.from_numpy(ids).long()[None]
        best = model.logits(model.hidden(tokens))[0].argmax(-1).numpy()
        edges = np.flatnonzero(np.diff((weights > 0).astype(np.int8), prepend=0, append=0))
        for start, stop in edges.reshape(-1, 2):
            exact = bool((best[start - 1 : stop - 1] == ids[start:stop]).all())
            right["call" if ids[start] == encoder.call_id else "answer"].append(exact)
    return {kind: sum(hits) / max(1, len(hits)) for kind, hits in right.items()}


class Trainer:
    """One training run in one folder."""

    def __init__(
        self,
        folder: Path,
        shape: ModelShape,
        encoder: SessionEncoder,
        *,
        seed: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.folder, self.encoder, self.seed, self._clock = folder, encoder, seed, clock
        self.model = AgentModel(shape, seed=seed)
        self.optimizer = MuonAdamW(self.model, muon_lr=0.02, adamw_lr=2e-3)
        self.step = self.pool = self.stage = self.tokens = 0
        self.seconds, self.loss = 0.0, 10.0

    def save(self) -> None:
        """Write the checkpoint; an interrupted write leaves the old one."""
        state = {
            "shape": asdict(self.model.shape),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": [self.step, self.pool, self.stage, self.tokens, self.seconds, self.loss],
        }
        torch.save(state, self.folder / "checkpoint.tmp")
        os.replace(self.folder / "checkpoint.tmp", self.folder / "checkpoint.pt")

    def resume(self) -> bool:
        """Take over the folder's checkpoint, if there is one."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.pool, self.stage, self.tokens, self.seconds, self.loss = state["position"]
        return True

    def run_pool(self, *, budget_s: float, autocast: bool) -> None:
        """Train on one pool of sessions and move the position past it."""
        while self._stage_is_over(self.seconds / budget_s):
            self.stage += 1
            self.loss = 10.0
        stage = STAGES[self.stage]
        for batch in batches(self.encoder, stage, self.seed, self.pool):
            started = self._clock()
            loss = batch_loss(self.model, batch, autocast=autocast)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step(learning_scale(self.seconds / budget_s, self.step))
            if batch.drill == (stage.drill_share > 0.5):
                self.loss += 0.03 * (loss.item() - self.loss)
            self.step += 1
            self.tokens += batch.tokens.numel()
            self.seconds += min(self._clock() - started, LONGEST_STEP_S)
        self.pool += 1

    def _stage_is_over(self, progress: float) -> bool:
        stage = STAGES[self.stage]
        return self.loss < stage.until_loss or progress > stage.latest_end


def spare_threads(used: int) -> int:
    """Return how many threads to use, so that other work on the machine is not slowed."""
    cores = len(os.sched_getaffinity(0))
    others = max(0.0, os.getloadavg()[0] - used)
    return max(1, min(2, cores - round(others)))


def train(trainer: Trainer, *, minutes: float, score_every_s: float) -> None:
    """Train until ``minutes`` of training are spent, all runs of the folder together."""
    budget_s = minutes * 60
    saved, scored, threads = trainer.seconds, trainer.seconds, torch.get_num_threads()
    curve = trainer.folder / "curve.csv"
    bar = tqdm(total=round(budget_s), initial=round(trainer.seconds), unit="s", mininterval=5)
    while trainer.seconds < budget_s:
        wanted = spare_threads(threads)
        if wanted != threads:
            torch.set_num_threads(wanted)
            threads = wanted
        trainer.run_pool(budget_s=budget_s, autocast=True)
        bar.update(round(trainer.seconds) - bar.n)
        bar.set_postfix(stage=trainer.stage, loss=f"{trainer.loss:.4f}", tokens=trainer.tokens)
        if trainer.seconds - saved >= SAVE_EVERY_S or trainer.seconds >= budget_s:
            saved = trainer.seconds
            trainer.save()
        if trainer.seconds - scored >= score_every_s or trainer.seconds >= budget_s:
            scored = trainer.seconds
            scores = forced_scores(trainer.model, trainer.encoder, sessions=24)
            fresh = not curve.exists()
            with curve.open("a", newline="") as file:
                rows = csv.writer(file)
                if fresh:
                    rows.writerow(["seconds", "tokens", "steps", "stage", "loss", "call", "answer"])
                rows.writerow(
                    [round(scored), trainer.tokens, trainer.step, trainer.stage]
                    + [round(x, 4) for x in (trainer.loss, scores["call"], scores["answer"])]
                )
    bar.close()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train the default model, or go on.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocab-size", type=int, default=1536)
    parser.add_argument("--score-every-s", type=float, default=180.0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    encoder = SessionEncoder(build_tokenizer(options.folder, options.vocab_size, options.seed))
    shape = ModelShape(vocab_size=encoder.vocab_size)
    trainer = Trainer(options.folder, shape, encoder, seed=options.seed)
    trainer.resume()
    train(
        trainer,
        minutes=options.minutes,
        score_every_s=options.score_every_s,
    )


if __name__ == "__main__":
    main()
