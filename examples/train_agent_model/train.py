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
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from examples.train_agent_model.curriculum import PRACTICE, STAGES, build_tokenizer
from examples.train_agent_model.mistakes import forced_scores
from examples.train_agent_model.model import ModelShape, shape_of
from examples.train_agent_model.peers import Peers, run_together
from examples.train_agent_model.rendering import SessionEncoder
from examples.train_agent_model.trainer import DECAY_SHARE, READING_STEPS, Trainer

SAVE_EVERY_S = 60.0

COMPILED_FROM_MINUTES = 10.0
"""Runs this long compile the layers, which takes some 15 s (and a C++ compiler) and saves a fifth
of each step."""


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
    alone, first = trainer.peers.count == 1, trainer.peers.rank == 0
    saved, scored, threads = trainer.seconds, trainer.seconds, torch.get_num_threads()
    bar = tqdm(
        total=round(budget_s),
        initial=round(trainer.seconds),
        unit="s",
        mininterval=5,
        disable=not first,
    )
    while trainer.seconds < budget_s:
        if alone and (wanted := spare_threads(threads)) != threads:
            torch.set_num_threads(wanted)
            threads = wanted
        trainer.run_pool(budget_s=budget_s, autocast=True)
        if not first:
            continue
        bar.update(round(trainer.seconds) - bar.n)
        bar.set_postfix(
            stage=trainer.stage,
            loss=f"{trainer.loss:.4f}",
            tokens=trainer.tokens,
            **{label: f"{loss:.4f}" for label, loss in trainer.probe_losses.items()},
        )
        if trainer.seconds - saved >= SAVE_EVERY_S or trainer.seconds >= budget_s:
            saved = trainer.seconds
            trainer.save()
        if trainer.seconds - scored >= score_every_s or trainer.seconds >= budget_s:
            scored = trainer.seconds
            write_scores(trainer)
    bar.close()


def write_scores(trainer: Trainer) -> None:
    """Add a row to the folder's curve."""
    curve = trainer.folder / "curve.csv"
    scores = forced_scores(trainer.mean, trainer.encoder, sessions=24)
    fresh = not curve.exists()
    with curve.open("a", newline="") as file:
        rows = csv.writer(file)
        if fresh:
            rows.writerow(["seconds", "tokens", "steps", "stage", "loss", "call", "answer"])
        rows.writerow(
            [round(trainer.seconds), trainer.tokens, trainer.step, trainer.stage]
            + [round(x, 4) for x in (trainer.loss, scores["call"], scores["answer"])]
        )


def work(peers: Peers, options: argparse.Namespace) -> None:
    """Train in one of the processes."""
    encoder = SessionEncoder(build_tokenizer(options.folder, options.vocab_size, options.seed))
    begun = options.begin_from
    if begun is None:
        shape = ModelShape(vocab_size=encoder.vocab_size)
    else:
        shape = shape_of(begun)
        shape = replace(shape, num_hidden_layers=shape.num_hidden_layers + len(options.grow_after))
    stages = STAGES if begun is None else (PRACTICE,)
    trainer = Trainer(
        options.folder,
        shape,
        encoder,
        seed=options.seed,
        rate=options.rate,
        decay_share=DECAY_SHARE if begun is None else 1.0,
        reading_steps=0 if begun is None else READING_STEPS,
        stages=tuple(
            replace(stage, batch_tokens=stage.batch_tokens * options.batch_scale)
            for stage in stages
        ),
        peers=peers,
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )
    if not trainer.resume() and begun is not None:
        trainer.begin_from(begun, options.grow_after)
    train(
        trainer,
        minutes=options.minutes,
        score_every_s=options.score_every_s,
        compiled=not options.eager,
    )


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train the default model, or go on.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocab-size", type=int, default=1536)
    parser.add_argument("--score-every-s", type=float, default=180.0)
    parser.add_argument(
        "--batch-scale", type=int, default=1, help="as many times the tokens of a step"
    )
    parser.add_argument("--processes", type=int, default=1, help="that train together, one a core")
    parser.add_argument(
        "--begin-from",
        type=Path,
        metavar="MODEL",
        help="an exported model: practise from it on hard sessions, at a rate that falls",
    )
    parser.add_argument(
        "--grow-after",
        type=int,
        nargs="+",
        default=[],
        metavar="LAYER",
        help="of that model, counted from 1: put a new layer after it",
    )
    parser.add_argument("--rate", type=float, default=1.0, help="share of the learning rates")
    parser.add_argument("--eager", action="store_true", help="needs no C++ compiler, slower")
    options = parser.parse_args()
    if options.processes > 1 and torch.cuda.is_available():
        parser.error("--processes is for CPUs; a GPU takes one process")
    if options.grow_after and options.begin_from is None:
        parser.error("--grow-after needs --begin-from")
    if options.grow_after:
        layers = shape_of(options.begin_from).num_hidden_layers
        known = set(options.grow_after) & set(range(1, layers + 1))
        if len(known) < len(options.grow_after):
            parser.error(f"--grow-after: each once, of the layers 1 to {layers}")
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.begin_from is not None:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(options.begin_from / name, options.folder / name)
    build_tokenizer(options.folder, options.vocab_size, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        run_together(options.processes, Path(folder) / "meeting", work, options)


if __name__ == "__main__":
    main()
