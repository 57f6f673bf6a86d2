"""A GGUF file's vocabulary as a tokenizer that cuts texts as the model's own does."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from runtime.chat_template import chat_template_of
from runtime.model.config import LoadError
from runtime.model.gguf_header import GgufHeader
from runtime.model.gguf_tokenizer import tokenizer_folder_of
from runtime.tokenizer import Tokenizer

BYTES = sorted({*range(33, 127), *range(161, 173), *range(174, 256)})
SPELT = [chr(each) for each in BYTES] + [chr(256 + each) for each in range(256 - len(BYTES))]
MERGES = ["h e", "l l", "he ll", "hell o", "\u0120 w", "1 2", "12 3"]
CONTROL = ["<|im_start|>", "<|im_end|>", "<tool>"]
TOKENS = [*SPELT, *(merge.replace(" ", "") for merge in MERGES), *CONTROL]
PLAIN: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.token_type": [*[1] * (len(TOKENS) - 3), 3, 3, 4],
    "tokenizer.ggml.eos_token_id": len(TOKENS) - 2,
    "tokenizer.chat_template": "{{ messages }}",
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def folder_of(tmp_path: Path, **changes: Any) -> Path:
    metadata = PLAIN | {f"tokenizer.{name.replace('__', '.')}": v for name, v in changes.items()}
    header = GgufHeader(path=tmp_path / "a.gguf", metadata=metadata, tensors={}, num_bytes=0)
    return tokenizer_folder_of(header, "qwen2")


def test_texts_are_cut_merged_and_spelt_back(tmp_path: Path) -> None:
    found = tokenizers.Tokenizer.from_file(str(folder_of(tmp_path) / "tokenizer.json"))
    text = "hello world 1234<|im_end|>\u00e9\u4e16<tool>"
    encoded = found.encode(text, add_special_tokens=False)
    assert encoded.tokens[:3] == ["hello", "\u0120w", "o"]
    assert "<|im_end|>" in encoded.tokens
    assert "<tool>" in encoded.tokens
    assert found.decode(encoded.ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(("pre", "tokens"), [("qwen2", ["1", "2", "3"]), ("llama-bpe", ["123"])])
def test_digits_are_cut_as_the_models_own_words_are(
    pre: str, tokens: list[str], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, ggml__pre=pre)
    found = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert found.encode("123", add_special_tokens=False).tokens == tokens


def test_the_runtime_reads_the_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    own = Tokenizer.load(folder, vocab_size=len(TOKENS) + 5)
    assert len(TOKENS) - 2 in own.end_of_turn_ids
    assert own.text_of([TOKENS.index("hello"), TOKENS.index("123")]) == "hello123"
    assert chat_template_of(folder) == "{{ messages }}"


def test_a_folder_is_made_once_and_another_vocabulary_has_another(tmp_path: Path) -> None:
    first = folder_of(tmp_path)
    stamp = (first / "tokenizer.json").stat().st_mtime_ns
    assert folder_of(tmp_path) == first
    assert (first / "tokenizer.json").stat().st_mtime_ns == stamp
    assert folder_of(tmp_path, ggml__pre="gpt-2") != first


def test_a_tokenizer_beside_the_file_goes_before_its_own(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({}))
    assert folder_of(tmp_path, ggml__model="llama") == tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml__model": "llama"}, "tokenizer.ggml.model is 'llama', and only gpt2"),
        ({"ggml__model": 3}, "tokenizer.ggml.model is '3'"),
        ({"ggml__pre": "tekken"}, "tokenizer.ggml.pre is 'tekken', not one of"),
        ({"ggml__tokens": "abc"}, "tokenizer.ggml.tokens is not a list of strings"),
        ({"ggml__tokens": [1, 2]}, "tokenizer.ggml.tokens is not a list of strings"),
        ({"ggml__token_type": [1]}, "not a type for each token"),
        ({"ggml__merges": ["ab"]}, "merges has one that is no pair"),
        ({"ggml__tokens": [*TOKENS[:-1], "a"]}, "has a token twice"),
        ({"ggml__eos_token_id": 10**6}, "eos_token_id is 1000000: no token"),
    ],
)
def test_what_is_not_known_is_named(changes, message: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError) as caught:
        folder_of(tmp_path, **changes)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "a.gguf"))
