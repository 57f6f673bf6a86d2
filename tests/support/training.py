"""The smallest run of the default model's training: a toy network on the shipped tokenizer."""

from pathlib import Path

import tokenizers

from examples.train_agent_model.curriculum import PRACTICE
from examples.train_agent_model.model import ModelShape
from examples.train_agent_model.peers import Peers
from examples.train_agent_model.rendering import SessionEncoder
from examples.train_agent_model.trainer import Trainer

MODEL = Path(__file__).parents[2] / "runtime/assets/default_model"


def shipped_encoder() -> SessionEncoder:
    return SessionEncoder(tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json")))


def toy_trainer(folder: Path, peers: Peers | None = None) -> Trainer:
    """A run that practises in ``folder`` with seed 1."""
    encoder = shipped_encoder()
    shape = ModelShape(
        vocab_size=encoder.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=32,
    )
    return Trainer(folder, shape, encoder, seed=1, stages=(PRACTICE,), peers=peers or Peers())
