"""Makes ``runtime/assets/byte_tokenizer``: one token per byte and the Qwen family's specials.

Ids 0 to 255 are the bytes in order, the special tokens follow. Run as
``python -m tests.support.byte_tokenizer`` to write the files again; a test compares them
with the committed ones.
"""

import json
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "runtime" / "assets" / "byte_tokenizer"

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
    "<think>",
    "</think>",
)


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE files.

    Printable Latin-1 stands for itself; the rest are numbered from U+0100 upwards (Radford
    et al. 2019, GPT-2's ``encoder.py``).
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def tokenizer_json(specials: Sequence[str] = SPECIAL_TOKENS) -> dict[str, object]:
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256 + index,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, text in enumerate(specials)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {character: byte for byte, character in enumerate(byte_characters())},
            "merges": [],
        },
    }


def files(
    specials: Sequence[str] = SPECIAL_TOKENS,
    ends: Sequence[str] = ("<|im_end|>", "<|endoftext|>"),
) -> dict[str, str]:
    """Name and text of each file of the folder.

    Args:
        ends: the special tokens that end a turn.
    """
    ids = {text: 256 + index for index, text in enumerate(specials)}
    contents: dict[str, dict[str, object]] = {
        "tokenizer.json": tokenizer_json(specials),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": ends[0],
            "pad_token": ends[-1],
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {"eos_token_id": [ids[end] for end in ends]},
    }
    texts = {
        name: json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        for name, content in contents.items()
    }
    if tuple(specials) == SPECIAL_TOKENS:
        texts["chat_template.jinja"] = (FOLDER / "chat_template.jinja").read_text(encoding="utf-8")
    return texts


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
