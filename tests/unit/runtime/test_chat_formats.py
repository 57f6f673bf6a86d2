"""A description chooses the format whose end of turn a tokenizer has."""

from pathlib import Path

import pytest

from runtime.chat_formats import format_of
from runtime.tokenizer import Tokenizer, TokenizerError
from tests.support.tokenizers import byte_level_json, write_tokenizer


def test_a_tokenizers_end_of_turn_is_that_of_the_format(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, byte_level_json())
    tokenizer = Tokenizer.load(folder, format_of=format_of("qwen3-coder"))
    assert tokenizer.end_of_turn_id == tokenizer.special_id("<|im_end|>")
    assert format_of(None) is None
    for name, said in (("nothing", "no chat format"), ("harmony", "no special token")):
        with pytest.raises(TokenizerError, match=said):
            Tokenizer.load(folder, format_of=format_of(name))
