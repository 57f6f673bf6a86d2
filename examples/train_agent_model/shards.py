"""Pools of encoded sessions on disk, written ahead by as many processes as there are cores.

    python -m examples.train_agent_model.shards --folder run --pools 1000 --processes 16

One core makes some 100,000 tokens a second, and a GPU may want more. A training in the same
folder takes a pool from its shard where there is one, and makes the others as it goes; what is
learned is the same.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tqdm import tqdm

from examples.train_agent_model.batches import Stage, pool_rows
from examples.train_agent_model.curriculum import PRACTICE, STAGES, build_tokenizer
from examples.train_agent_model.rendering import Encoded, Label, SessionEncoder


def shard_path(folder: Path, stages: tuple[Stage, ...], seed: int, at: tuple[int, int]) -> Path:
    """Return where the shard of a pool lies, ``at`` being the numbers of its stage and of itself.

    The name says what is in it: those of a curriculum and of practice may share a folder.
    """
    number, pool = at
    stage = stages[number]
    kind = f"level{stage.level:g}" + "-hard" * stage.hard + f"-recalls{stage.recalls}"
    return folder / "shards" / f"seed{seed}-stage{number}-{kind}-pool{pool}.safetensors"


def write_shard(path: Path, rows: list[Encoded]) -> None:
    """Write the rows of a pool; an interrupted write leaves nothing under that name."""
    path.parent.mkdir(exist_ok=True)
    columns: dict[str, npt.NDArray[Any]] = {
        label: np.concatenate([row.labels[label] for row in rows]).astype(np.int16)
        for label in Label
    }
    columns["lengths"] = np.array([len(row.ids) for row in rows], np.int32)
    columns["ids"] = np.concatenate([row.ids for row in rows]).astype(np.uint16)
    columns["weights"] = np.concatenate([row.weights for row in rows]).astype(np.float32)
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    save_file(columns, unfinished)
    unfinished.replace(path)


def read_shard(path: Path) -> list[Encoded]:
    """Return the rows of a pool, as ``pool_rows`` made them."""
    columns = load_file(path)
    ends = np.cumsum(columns["lengths"])[:-1]
    ids = np.split(columns["ids"].astype(np.int32), ends)
    weights = np.split(columns["weights"], ends)
    labels = {label: np.split(columns[label].astype(np.int32), ends) for label in Label}
    return [
        Encoded(
            ids=ids[row],
            weights=weights[row],
            labels={label: values[row] for label, values in labels.items()},
        )
        for row in range(len(ids))
    ]


def rows_of(
    folder: Path, encoder: SessionEncoder, stages: tuple[Stage, ...], seed: int, at: tuple[int, int]
) -> list[Encoded]:
    """Return the rows of the pool ``at``, see ``shard_path``."""
    path = shard_path(folder, stages, seed, at)
    if path.exists():
        return read_shard(path)
    stage, pool = at
    return pool_rows(encoder, stages[stage], seed, stage, pool)


def _write(folder: Path, stages: tuple[Stage, ...], seed: int, at: tuple[int, int]) -> int:
    """Make one shard if it is not there; return its tokens."""
    path = shard_path(folder, stages, seed, at)
    encoder = SessionEncoder(Tokenizer.from_file(str(folder / "tokenizer.json")))
    rows = rows_of(folder, encoder, stages, seed, at)
    if not path.exists():
        write_shard(path, rows)
    return sum(len(row.ids) for row in rows)


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description="Write encoded sessions ahead of a training.")
    parser.add_argument("--folder", type=Path, required=True, help="of the training")
    parser.add_argument("--pools", type=int, required=True, help="of each stage")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocab-size", type=int, default=1536)
    parser.add_argument("--practice", action="store_true", help="for a training from a model")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer(options.folder, options.vocab_size, options.seed)
    stages = (PRACTICE,) if options.practice else STAGES
    wanted = [(stage, pool) for pool in range(options.pools) for stage in range(len(stages))]
    tokens = 0
    with ProcessPoolExecutor(options.processes) as processes:
        write = partial(_write, options.folder, stages, options.seed)
        for count in tqdm(processes.map(write, wanted), total=len(wanted), unit="pool"):
            tokens += count
    print(f"{tokens} tokens in {len(wanted)} pools")


if __name__ == "__main__":
    main()
