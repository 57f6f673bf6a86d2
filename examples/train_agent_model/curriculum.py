"""What a training begins with: its tokenizer, and its stages, from copying to everything."""

from pathlib import Path

from tokenizers import Tokenizer

from examples.train_agent_model.batches import Stage
from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.rendering import session_parts
from examples.train_agent_model.tokenizer import save_tokenizer, train_tokenizer

TOKENIZER_SESSIONS = 5000

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
        latest_end=0.35,
        recalls=16,
    ),
    Stage(
        level=0.35,
        drill_share=0.02,
        batch_tokens=2048,
        prompt_weight=0.1,
        until_loss=0.0,
        latest_end=0.45,
        recalls=32,
    ),
    Stage(
        level=0.6,
        drill_share=0.01,
        batch_tokens=4096,
        prompt_weight=0.02,
        until_loss=0.0,
        latest_end=0.55,
        hard=True,
        recalls=48,
    ),
    Stage(
        level=1.0,
        drill_share=0.01,
        batch_tokens=4096,
        prompt_weight=0.0,
        until_loss=0.0,
        latest_end=2.0,
        hard=True,
        recalls=64,
    ),
)
PRACTICE = STAGES[-1]
"""The only stage of a training that begins from a model."""


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
