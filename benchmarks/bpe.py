"""A 32k byte-level BPE for benchmarks, trained on the spot from named files.

Measurements of grammars and drafts need a vocabulary of real size, and no published
tokenizer is shipped. The corpus is Python's own library (prose, code and tables), the real
tool schemas and the texts of coding agents; a seed picks what of it is used. The same files
and the same seed give the same tokenizer.
"""

import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as TokenizerModel
from tokenizers.trainers import BpeTrainer

from benchmarks.report import data_file
from runtime.tokenizer import Tokenizer

VOCAB_SIZE = 32_000
_MAX_CORPUS_CHARS = 16_000_000
_CHUNK_CHARS = 20_000
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
# The pre-tokenizer of Llama 3: words with their space, digits by threes.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(data: Path, folder: Path, *, seed: int) -> Tokenizer:
    """Train, write the files of a ChatML model to ``folder`` and load them.

    Raises:
        DataMissing: a file of the corpus is not there.
    """
    tokenizer = TokenizerModel(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE - len(_SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(data, seed), trainer)
    tokenizer.add_tokens([AddedToken(n, special=n.startswith("<|")) for n in _SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder, model_type="qwen3")


def _corpus(data: Path, seed: int) -> Iterator[str]:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    files += [data_file(data, "schemas/tools.jsonl"), data_file(data, "traces/miniswe.texts.jsonl")]
    random.Random(seed).shuffle(files)
    left = _MAX_CORPUS_CHARS
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")[:left]
        left -= len(text)
        for start in range(0, len(text), _CHUNK_CHARS):
            yield text[start : start + _CHUNK_CHARS]
