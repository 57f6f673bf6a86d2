"""The tokenizer: byte-level BPE whose pieces make copying easy for a tiny model.

A word has the same tokens in prose, in a tool's name and in JSON, with or without a blank
before it, because text is cut into words, pairs of digits and runs of anything else before
BPE sees it. The fixed texts of the chat format and of JSON schemas are cut out whole, so
that BPE learns one token for each; so are runs of English function words with their blanks.
Pieces learned are only what the training side of the word split shows.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.model.sources import DEFAULT_MODEL

END_OF_TEXT = "<|endoftext|>"
TURN, END_OF_TURN = "<|im_start|>", "<|im_end|>"
CALL, END_OF_CALL = "<tool_call>", "</tool_call>"
RESPONSE, END_OF_RESPONSE = "<tool_response>", "</tool_response>"
SPECIAL = (END_OF_TEXT, TURN, END_OF_TURN, CALL, END_OF_CALL, RESPONSE, END_OF_RESPONSE)

FIXED = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n",
    "</tools>\n\nFor each function call, return a json object with function name and arguments"
    " within ",
    " XML tags:\n",
    '\n{"name": <function-name>, "arguments": <args-json-object>}\n',
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '.", "parameters": {"type": "object", "properties": {"',
    '", "parameters": {"type": "object", "properties": {"',
    '": {"type": "string"',
    '": {"type": "integer"',
    '": {"type": "number"',
    '": {"type": "boolean"',
    ', "description": "The ',
    ', "enum": ["',
    '}}, "required": ["',
    '"], "additionalProperties": false}}}',
    '\n{"name": "',
    '", "arguments": {"',
    "system\n",
    "user\n",
    "assistant\n",
    "The ",
    "I have no tool for the ",
)
_FUNCTION_WORDS = "the of is a an and to for with when in on by from what are you me your"


def split_pattern() -> str:
    """Return the regular expression whose matches are the pieces that BPE works inside."""
    fixed = "|".join(r"\n".join(re.escape(line) for line in text.split("\n")) for text in FIXED)
    words = "|".join(_FUNCTION_WORDS.split())
    return (
        rf"{fixed}|(?: (?:{words})(?= ))+ |[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]{{1,2}}|[^A-Za-z0-9]+?"
        rf"(?={fixed}|[A-Za-z0-9]|(?: (?:{words}) )|$)"
    )


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a vocabulary of exactly ``vocab_size`` entries, special tokens included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split_pattern()), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_with_digits(texts), trainer)
    return tokenizer


def _with_digits(texts: Iterable[str]) -> Iterator[str]:
    """Make sure that each pair of digits is seen often enough to be one token."""
    yield from texts
    yield from (f"{pair:02d}," * 20_000 for pair in range(100))


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the id of each special token.

    Raises:
        ValueError: the tokenizer was not made by ``train_tokenizer``.
    """
    ids = {text: tokenizer.token_to_id(text) for text in SPECIAL}
    missing = [text for text, token in ids.items() if token is None]
    if missing:
        raise ValueError(f"the tokenizer lacks {', '.join(missing)}")
    return {text: token for text, token in ids.items() if token is not None}


def text_encoder(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer without its special tokens: what the runtime encodes text with."""
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = []
    raw["model"]["vocab"] = {k: v for k, v in raw["model"]["vocab"].items() if k not in SPECIAL}
    encoder: Tokenizer = Tokenizer.from_str(json.dumps(raw))
    return encoder


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json``, the ``tokenizer_config.json`` that transformers reads and the chat
    template of the model that comes along."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 16_384,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copyfile(DEFAULT_MODEL / "chat_template.jinja", folder / "chat_template.jinja")
