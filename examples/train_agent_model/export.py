"""From a training folder to a model folder in Hugging Face layout.

    python -m examples.train_agent_model.export --folder TRAINING --to runtime/assets/default_model

Writes config.json, generation_config.json, model.safetensors (bfloat16) and the tokenizer; the
model card beside them is written by hand, with the figures of ``evaluate``.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from examples.train_agent_model.model import ModelShape, shape_of
from examples.train_agent_model.tokenizer import END_OF_TEXT, END_OF_TURN, special_ids

MAX_POSITIONS = 32_768
"""Far beyond the trained length: the first turn of an agent of 24,000 tokens can be run."""


def export(training: Path, target: Path, mean_with: Path | None = None) -> None:
    """Write the mean weights of a training folder to ``target``.

    Args:
        mean_with: an exported model of the same shape; what is written is the mean of both. Between
            a model and what short practice made of it this makes fewer mistakes than either.
    """
    state = torch.load(training / "checkpoint.pt", weights_only=True, map_location="cpu")
    shape = ModelShape(**state["shape"])
    tokenizer = Tokenizer.from_file(str(training / "tokenizer.json"))
    ids = special_ids(tokenizer)
    end_of_turn, end_of_text = ids[END_OF_TURN], ids[END_OF_TEXT]
    target.mkdir(parents=True, exist_ok=True)
    mean = state["mean"]
    if mean_with is not None:
        if shape_of(mean_with) != shape:
            raise ValueError(f"{mean_with} has another shape")
        other = load_file(mean_with / "model.safetensors")
        mean = {name: (weight + other[name].float()) / 2 for name, weight in mean.items()}
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in mean.items()}
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
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(training / name, target / name)


def _write(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description="Write a trained model in Hugging Face layout.")
    parser.add_argument("--folder", type=Path, required=True, help="where training took place")
    parser.add_argument("--to", type=Path, required=True, help="the model folder")
    parser.add_argument(
        "--mean-with",
        type=Path,
        metavar="MODEL",
        help="another exported model: write the mean of both",
    )
    options = parser.parse_args()
    export(options.folder, options.to, options.mean_with)


if __name__ == "__main__":
    main()
