"""Three vocabularies that differ in what their tokens cover: the shipped model's, one token a
byte, and 32,000 tokens of byte-level BPE as large models have them, trained on the spot."""

import functools
import json
import random
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from runtime.tokenizer import Tokenizer as Vocabulary
from tests.support.tokenizers import CHATML_SPECIALS, LINES, write_tokenizer

ASSETS = Path(__file__).parents[2] / "runtime" / "assets"
NAMES = ("shipped", "bytes", "bpe32k")
_SIZE = 32_000
_WORDS = 14_000


def vocabulary(name: str, folder: Path) -> Vocabulary:
    """One of ``NAMES``; ``folder`` is for what has to be written."""
    if name == "shipped":
        return Vocabulary.load(ASSETS / "default_model")
    if name == "bytes":
        return Vocabulary.load(ASSETS / "byte_tokenizer", model_type="qwen3")
    return Vocabulary.load(write_tokenizer(folder, json.loads(_large())), model_type="qwen3")


@functools.cache
def _large() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(random.Random(0)), trainer)
    for name in CHATML_SPECIALS:
        tokenizer.add_tokens([AddedToken(name, special=name.startswith("<|"), normalized=False)])
    return tokenizer.to_str()


def _corpus(rng: random.Random) -> list[str]:
    """JSON over many made-up words, in the spacings that are in use."""
    syllables = ["".join(rng.choices("bcdfglmnprstvw", k=1)) + v for v in "aeiou" for _ in range(9)]
    words = ["".join(rng.choices(syllables, k=rng.randint(2, 6))) for _ in range(_WORDS)]
    lines = list(LINES) * 20
    for at in range(0, _WORDS - 4, 4):
        a, b, c, d = words[at : at + 4]
        value = {a: [b, rng.randint(0, 9999)], c: {d: None, b: True}, d: []}
        for separators in ((", ", ": "), (",", ":")):
            lines.append(json.dumps([value, {a: b}], separators=separators))
        lines.append(json.dumps(value, indent=rng.choice((2, 4))))
        lines.append(f"{a.title()} {b} {c}, {d}; the {a} of {b}.")
    return lines
