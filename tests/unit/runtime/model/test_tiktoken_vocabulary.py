"""Kimi's vocabulary: texts become the tokens that ``tiktoken`` makes of them."""

import base64
import contextlib
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from runtime.model.config import LoadError
from runtime.model.sources import find_source
from runtime.model.tiktoken_vocabulary import FILE, has_vocabulary, tiktoken_folder_of
from runtime.tokenizer import Tokenizer
from tests.support.pre_tokenizers import PATTERNS
from tools_api.chat_format import Segment

SETTINGS: dict[str, Any] = {
    "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    "chat_template": "{{ messages }}",
}
CONFIG = {
    "model_type": "kimi_k2",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "first_k_dense_replace": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000.0,
    "hidden_act": "silu",
    "n_routed_experts": None,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def random_ranks(rng: random.Random, alphabet: str, count: int) -> dict[bytes, int]:
    ranks = {bytes([byte]): byte for byte in range(256)}
    known = [bytes([byte]) for byte in alphabet.encode()]
    while len(ranks) < 256 + count:
        token = rng.choice(known) + rng.choice(known)
        if token not in ranks and len(token) < 12:
            ranks[token] = len(ranks)
            known.append(token)
    return ranks


def spelt(ranks: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def folder_with(tmp_path: Path, ranks: bytes, **settings: Any) -> Path:
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_bytes(ranks)
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS | settings))
    (folder / "generation_config.json").write_text('{"eos_token_id": 256}')
    return folder


def merged(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """As ``tiktoken`` does: a word that is a token is that token; else of the neighbours that are
    a token together those of the lowest rank are put together, the leftmost first."""
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        joined = [
            (ranks[a + b], at)
            for at, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in ranks
        ]
        if not joined:
            return [ranks[part] for part in parts]
        _, at = min(joined)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.mark.samples(16)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("alphabet", ["ab", "a", "abcé 字", "xY'sé字。\n\t 12"])
def test_texts_become_the_tokens_that_their_ranks_say(
    alphabet: str, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(f"{alphabet} {seed}")
    ranks = random_ranks(rng, alphabet, 7 if alphabet == "a" else 150)
    folder = tiktoken_folder_of(folder_with(tmp_path, spelt(ranks)))
    found = Tokenizer.load(folder, vocab_size=1000)
    cut = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERNS["kimi"]), "isolated")
    for _ in range(100):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40)))
        words = [word for word, _ in cut.pre_tokenize_str(text)]
        wanted = [token for word in words for token in merged(word.encode(), ranks)]
        assert found.encode([Segment(text)]).tolist() == wanted
        assert b"".join(found.token_bytes(token) for token in wanted).decode() == text


def test_added_tokens_have_the_names_that_the_folder_gives_them(tmp_path: Path) -> None:
    added = {"256": {"content": "<|im_end|>", "special": True}, "260": {"content": "<think>"}}
    ranks = spelt({bytes([byte]): byte for byte in range(256)})
    folder = folder_with(tmp_path, ranks, added_tokens_decoder=added)
    found = Tokenizer.load(tiktoken_folder_of(folder), vocab_size=1000)
    assert (found.special_id("<|im_end|>"), found.special_id("<think>")) == (256, 260)
    assert found.special_id("<|reserved_token_257|>") == 257
    assert len(found.specials) == 256
    assert found.encode([Segment("<think>")]).size > 1


def test_a_folder_is_served_with_it_and_made_once(tmp_path: Path) -> None:
    ranks = spelt(random_ranks(random.Random(1), "ab", 20))
    folder = folder_with(tmp_path, ranks)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    first = find_source(str(folder))
    assert first.folder == folder
    assert (first.tokenizer_folder / "tokenizer_config.json").read_text() == json.dumps(SETTINGS)
    made = (first.tokenizer_folder / "tokenizer.json").stat().st_mtime_ns
    again = find_source(str(folder)).tokenizer_folder
    assert (again / "tokenizer.json").stat().st_mtime_ns == made
    other = tiktoken_folder_of(folder_with(tmp_path, ranks, chat_template="other"))
    assert other != again


def test_a_tokenizer_json_of_the_folders_own_goes_first(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, b"")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert not has_vocabulary(folder)
    assert find_source(str(folder)).tokenizer_folder == folder


def test_the_vocabulary_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, b"", auto_map=None)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": "deepseek_v3"}))
    with pytest.raises(LoadError, match="only Kimi's vocabulary is read without"):
        has_vocabulary(folder)


WHOLE = spelt({bytes([byte]): byte for byte in range(256)})


@pytest.mark.parametrize(
    ("ranks", "settings", "message"),
    [
        (b"", {}, "the byte 0 is no token"),
        (b"\xff\xfe 0\n", {}, "line 1 is no token with the rank 0"),
        (b"AA== 1\n", {}, "line 1 is no token with the rank 0"),
        (b"AA==\n", {}, "line 1 is no token with the rank 0"),
        (WHOLE + base64.b64encode(b"a" * 513) + b" 256\n", {}, "line 257 is no token"),
        (WHOLE, {"added_tokens_decoder": {"x": {"content": "a"}}}, "has 'x', no token and its"),
        (WHOLE, {"added_tokens_decoder": {"3": {"content": "a"}}}, "an added one the number 3"),
        (WHOLE, {"added_tokens_decoder": {"256": 7}}, "has '256', no token and its text"),
    ],
)
def test_what_is_damaged_is_named(
    ranks: bytes, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        tiktoken_folder_of(folder_with(tmp_path, ranks, **settings))
    assert not [*tmp_path.glob("cache/*/*")]


@pytest.mark.parametrize("seed", range(30))
def test_no_damage_is_more_than_a_refusal(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    content = bytearray(spelt(random_ranks(rng, "ab", 9)))
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    folder = folder_with(tmp_path, bytes(content))
    with contextlib.suppress(LoadError):
        Tokenizer.load(tiktoken_folder_of(folder), vocab_size=1000)
