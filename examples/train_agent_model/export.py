"""From a training folder to a model folder in Hugging Face layout.

    python -m examples.train_agent_model.export --folder TRAINING --to runtime/assets/default_model
    python -m examples.train_agent_model.export --folder FIRST SECOND --shares 0.25 0.75 --to FOLDER

Writes config.json, generation_config.json, model.safetensors (bfloat16) and the tokenizer; the
model card beside them is written by hand, with the figures of ``evaluate``.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from examples.train_agent_model.model import ModelShape
from examples.train_agent_model.tokenizer import END_OF_TEXT, END_OF_TURN, special_ids

MAX_POSITIONS = 16_384


def export(trainings: Mapping[Path, float], target: Path) -> None:
    """Write a trained model to ``target``.

    Args:
        trainings: folders and their shares of the weights. More than one where one began from
            the other: their mean mistakes less than each (Wortsman et al. 2022,
            arXiv:2203.05482).
    """
    states = [
        torch.load(folder / "checkpoint.pt", weights_only=True, map_location="cpu")
        for folder in trainings
    ]
    shape = ModelShape(**states[0]["shape"])
    mean = {name: torch.zeros_like(weight) for name, weight in states[0]["model"].items()}
    for state, share in zip(states, trainings.values(), strict=True):
        for name, weight in state["model"].items():
            mean[name] += share * weight
    training = next(iter(trainings))
    tokenizer = Tokenizer.from_file(str(training / "tokenizer.json"))
    ids = special_ids(tokenizer)
    end_of_turn, end_of_text = ids[END_OF_TURN], ids[END_OF_TEXT]
    target.mkdir(parents=True, exist_ok=True)
    weights = {name: w.to(torch.bfloat16).contiguous() for name, w in mean.items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    _write(target / "config.json", shape.hugging_face_config(end_of_turn, MAX_POSITIONS))
    _write(
        target / "generation_config.json",
        {
            "do_sample": False,
            "eos_token_id": [end_of_turn, end_of_text],
            "pad_token_id": end_of_text,
        },
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(training / name, target / name)


def _write(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description="Write a trained model in Hugging Face layout.")
    parser.add_argument(
        "--folder", type=Path, required=True, nargs="+", help="where training took place"
    )
    parser.add_argument("--shares", type=float, nargs="+", help="of several (default: equal)")
    parser.add_argument("--to", type=Path, required=True, help="the model folder")
    options = parser.parse_args()
    shares = options.shares or [1 / len(options.folder)] * len(options.folder)
    if len(shares) != len(options.folder):
        parser.error("--shares: one number for each folder")
    export(dict(zip(options.folder, shares, strict=True)), options.to)


if __name__ == "__main__":
    main()
