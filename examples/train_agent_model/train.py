"""The training loop: a curriculum of generated sessions, stopped and resumed at will.

    python -m examples.train_agent_model.train --folder /tmp/agent --minutes 90

The folder gets ``tokenizer.json``, ``checkpoint.pt`` (model, optimiser, position in the data)
and ``curve.csv``. Started again with the same folder it goes on where it stopped. The learning
rate and the latest start of each stage follow the share of the training time that is spent.
"""

import argparse
import csv
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm

from examples.train_agent_model.batches import Batch, Stage, batches
from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.model import AgentModel, MatchProbe, ModelShape
from examples.train_agent_model.optimizer import MuonAdamW
from examples.train_agent_model.rendering import SessionEncoder, session_parts
from examples.train_agent_model.tokenizer import save_tokenizer, train_tokenizer

TOKENIZER_SESSIONS = 5000
WARM_UP_STEPS = 50
DECAY_SHARE = 0.55
SAVE_EVERY_S = 60.0
LONGEST_STEP_S = 2.0
"""What a step counts at most: a machine that stalls must not use up the schedule."""

MATCH_WEIGHT = 1.0
"""Weight of the loss of ``MatchProbe`` beside that of predicting tokens."""

COMPILED_FROM_MINUTES = 10.0
"""Runs this long compile the layers, which takes some 15 s (and a C++ compiler) and saves a fifth
of each step."""

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
PRACTICE = replace(STAGES[-1], hard=True)
"""The only stage of a training that begins from another one."""


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


def batch_loss(
    model: AgentModel, probe: MatchProbe, batch: Batch, *, autocast: bool
) -> tuple[Tensor, Tensor]:
    """Return two mean losses: of predicting each weighted token from those before it, and of
    saying at the labelled words whether the tools know them (0 where none is labelled)."""
    weights = batch.weights[:, 1:].reshape(-1)
    chosen = weights.nonzero().squeeze(1)
    known = batch.known[:, :-1]
    labelled = known >= 0
    with torch.autocast(batch.tokens.device.type, dtype=torch.bfloat16, enabled=autocast):
        hidden, middle = model.hidden_and_middle(batch.tokens[:, :-1])
        logits = model.logits(hidden.flatten(0, 1)[chosen])
        odds = probe(middle[labelled])
    losses = F.cross_entropy(logits, batch.tokens[:, 1:].reshape(-1)[chosen], reduction="none")
    matches = F.binary_cross_entropy_with_logits(odds, known[labelled], reduction="sum")
    return (
        (losses * weights[chosen]).sum() / weights[chosen].sum(),
        matches / max(1, len(odds)),
    )


def learning_scale(progress: float, step: int, decay_share: float = DECAY_SHARE) -> float:
    """Return the factor on the learning rates: warm-up, plateau, linear decay."""
    return min(1.0, (step + 1) / WARM_UP_STEPS, max(0.01, (1 - progress) / decay_share))


@torch.no_grad()
def forced_scores(model: AgentModel, encoder: SessionEncoder, sessions: int) -> dict[str, float]:
    """Score held-out sessions with the right history given: share of turns wholly right."""
    generator = SessionGenerator("forced", held_out=True)
    right: dict[str, list[bool]] = {"call": [], "answer": []}
    for _ in range(sessions):
        session = encoder.encode(session_parts(generator.session(num_questions=4)))
        ids, weights = session.ids, session.weights
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
        rate: float = 1.0,
        decay_share: float = DECAY_SHARE,
        stages: tuple[Stage, ...] = STAGES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            rate: where the learning rates begin, as a share of their usual ones.
            decay_share: the share of the time in which they fall.
        """
        self.folder, self.encoder, self.seed, self._clock = folder, encoder, seed, clock
        self._rate, self._decay_share, self._stages = rate, decay_share, stages
        self.model = AgentModel(shape, seed=seed)
        self.probe = MatchProbe(shape)
        both = nn.ModuleList([self.model, self.probe])
        self.optimizer = MuonAdamW(both, muon_lr=0.02, adamw_lr=2e-3)
        self.step = self.pool = self.stage = self.tokens = 0
        self.seconds, self.loss, self.match_loss = 0.0, 10.0, 1.0

    def save(self) -> None:
        """Write the checkpoint; an interrupted write leaves the old one."""
        state = {
            "shape": asdict(self.model.shape),
            "model": self.model.state_dict(),
            "probe": self.probe.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": [self.step, self.pool, self.stage, self.tokens],
            "meters": [self.seconds, self.loss, self.match_loss],
        }
        torch.save(state, self.folder / "checkpoint.tmp")
        os.replace(self.folder / "checkpoint.tmp", self.folder / "checkpoint.pt")

    def begin_from(self, folder: Path) -> None:
        """Take over a finished training of another folder, and practise from there: nothing
        of the time is spent yet."""
        self._take(folder / "checkpoint.pt")
        self.seconds, self.stage = 0.0, 0

    def resume(self) -> bool:
        """Take over the folder's checkpoint, if there is one."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return False
        self._take(path)
        return True

    def _take(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.probe.load_state_dict(state["probe"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.pool, self.stage, self.tokens = state["position"]
        self.seconds, self.loss, self.match_loss = state["meters"]

    def run_pool(self, *, budget_s: float, autocast: bool) -> None:
        """Train on one pool of sessions and move the position past it."""
        while self._stage_is_over(self.seconds / budget_s):
            self.stage += 1
            self.loss = 10.0
        stage = self._stages[self.stage]
        for batch in batches(self.encoder, stage, self.seed, self.pool):
            started = self._clock()
            loss, match_loss = batch_loss(self.model, self.probe, batch, autocast=autocast)
            (loss + MATCH_WEIGHT * match_loss).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step(
                self._rate * learning_scale(self.seconds / budget_s, self.step, self._decay_share)
            )
            if batch.drill == (stage.drill_share > 0.5):
                self.loss += 0.03 * (loss.item() - self.loss)
            if not batch.drill:
                self.match_loss += 0.03 * (match_loss.item() - self.match_loss)
            self.step += 1
            self.tokens += batch.tokens.numel()
            self.seconds += min(self._clock() - started, LONGEST_STEP_S)
        self.pool += 1

    def _stage_is_over(self, progress: float) -> bool:
        stage = self._stages[self.stage]
        return self.loss < stage.until_loss or progress > stage.latest_end


def spare_threads(used: int) -> int:
    """Return how many threads to use, so that other work on the machine is not slowed."""
    cores = len(os.sched_getaffinity(0))
    others = max(0.0, os.getloadavg()[0] - used)
    return max(1, min(2, cores - round(others)))


def train(trainer: Trainer, *, minutes: float, score_every_s: float, compiled: bool = True) -> None:
    """Train until ``minutes`` of training are spent, all runs of the folder together."""
    budget_s = minutes * 60
    if compiled and minutes >= COMPILED_FROM_MINUTES:
        for layer in trainer.model.model.layers:
            layer.compile(dynamic=True)
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
        bar.set_postfix(
            stage=trainer.stage,
            loss=f"{trainer.loss:.4f}",
            match=f"{trainer.match_loss:.4f}",
            tokens=trainer.tokens,
        )
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
    parser.add_argument(
        "--begin-from",
        type=Path,
        metavar="FOLDER",
        help="a finished training: practise from its end on hard sessions, at a rate that falls",
    )
    parser.add_argument("--rate", type=float, default=1.0, help="share of the learning rates")
    parser.add_argument("--eager", action="store_true", help="needs no C++ compiler, slower")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.begin_from is not None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(options.begin_from / name, options.folder / name)
    encoder = SessionEncoder(build_tokenizer(options.folder, options.vocab_size, options.seed))
    shape = ModelShape(vocab_size=encoder.vocab_size)
    practises = options.begin_from is not None
    trainer = Trainer(
        options.folder,
        shape,
        encoder,
        seed=options.seed,
        rate=options.rate,
        decay_share=1.0 if practises else DECAY_SHARE,
        stages=(PRACTICE,) if practises else STAGES,
    )
    if not trainer.resume() and practises:
        trainer.begin_from(options.begin_from)
    train(
        trainer,
        minutes=options.minutes,
        score_every_s=options.score_every_s,
        compiled=not options.eager,
    )


if __name__ == "__main__":
    main()
