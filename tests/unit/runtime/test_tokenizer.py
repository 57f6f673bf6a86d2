"""Text, special tokens and bytes, over small tokenizers of the three published shapes."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from runtime.tokenizer import IncrementalDecoder, Tokenizer, TokenizerError
from tests.support.architecture import ROOT
from tests.support.tokenizers import (
    CHATML_SPECIALS,
    MISTRAL_SPECIALS,
    byte_level_json,
    sentencepiece_json,
    write_tokenizer,
)
from tools_api.chat_format import Segment

DEFAULT = ROOT / "runtime" / "assets" / "default_model"
HARD_TEXTS = [
    "",
    "hello world",
    "  two  spaces  ",
    '{"name": "look_up", "arguments": {"q": "caf\u00e9"}}',
    "<|im_end|><tool_call></tool_call><think>",
    "<s>[INST] </s><unk><0x0A>\u2581",
    "\u65e5\u672c\u8a9e \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301",
    "\u0645\u0631\u062d\u0628\u0627",
    "\x00\x01\r\n\t\x7f",
    "A\u030a" * 40,
]


METASPACE = {
    "type": "Metaspace",
    "replacement": "\u2581",
    "prepend_scheme": "always",
    "split": False,
}


@pytest.fixture
def byte_level(tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(write_tokenizer(tmp_path / "b", byte_level_json()), model_type="qwen3")


@pytest.fixture
def sentencepiece(tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(
        write_tokenizer(tmp_path / "s", sentencepiece_json()), model_type="mistral"
    )


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> bytes:
    return b"".join(tokenizer.token_bytes(int(token)) for token in tokens)


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_encoded_text_gives_its_bytes_back(byte_level: Tokenizer, text: str) -> None:
    assert text_of(byte_level, byte_level.encode([Segment(text)])) == text.encode()


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_sentencepiece_text_gives_its_bytes_back_behind_one_space(
    sentencepiece: Tokenizer, text: str
) -> None:
    encoded = text_of(sentencepiece, sentencepiece.encode([Segment(text)]))
    # The meta symbol itself cannot be told from a space, as in sentencepiece.
    assert encoded == (" " + text.replace("\u2581", " ")).encode() if text else encoded == b""


@pytest.mark.parametrize(
    "prefix",
    [
        {},
        {"normalizer": None, "pre_tokenizer": METASPACE},
        {"normalizer": {"type": "Prepend", "prepend": "\u2581"}, "pre_tokenizer": METASPACE},
    ],
)
@pytest.mark.parametrize("text", ["a", " a", "  a", '"},\n', " ", "é 日", '{"name": "'])
def test_what_is_spelt_is_that_text_and_no_space_in_front(
    text: str, prefix: dict[str, Any], byte_level: Tokenizer, tmp_path: Path
) -> None:
    """A forced call of a model whose tokenizer writes a space before any text failed: the space
    was not legal there."""
    raw = sentencepiece_json() | prefix
    for tokenizer in (
        byte_level,
        Tokenizer.load(write_tokenizer(tmp_path, raw), model_type="mistral"),
    ):
        assert text_of(tokenizer, tokenizer.spell(text)) == text.encode()


@pytest.mark.parametrize("seed", range(20))
def test_text_is_split_as_the_library_does_it(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = [*"aab  \n\t1!'", "The ", "\u00e9", "\u65e5", "\U0001f600", '", "name": "']
    text = "".join(rng.choices(alphabet, k=rng.randint(1, 400)))
    library = tokenizers.Tokenizer.from_file(str(DEFAULT / "tokenizer.json"))
    ours = Tokenizer.load(DEFAULT).encode([Segment(text)])
    assert ours.tolist() == library.encode(text, add_special_tokens=False).ids


def test_a_run_that_the_library_gives_up_on_is_encoded() -> None:
    tokenizer = Tokenizer.load(DEFAULT)
    run = "\t" * 1_200_000
    assert text_of(tokenizer, tokenizer.encode([Segment(run)])) == run.encode()
    assert text_of(tokenizer, tokenizer.encode([Segment("a\tb")])) == b"a\tb"


def test_the_least_that_a_text_can_have_is_known_before_it_is_encoded(
    byte_level: Tokenizer, sentencepiece: Tokenizer
) -> None:
    for tokenizer in (byte_level, sentencepiece):
        for text in (*HARD_TEXTS, "\u2581" * 20_000, "the city " * 5_000):
            least, most = tokenizer.least_tokens(text), len(tokenizer.encode([Segment(text)]))
            assert len(text.encode()) // tokenizer.most_bytes_per_token <= least <= most


@pytest.mark.parametrize("fixture", ["byte_level", "sentencepiece"])
def test_text_never_becomes_a_special_token(fixture: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(fixture)
    for name in tokenizer.specials:
        for text in (name, f"a{name}b", f" {name} ", name * 3):
            tokens = tokenizer.encode([Segment(text)])
            assert not any(tokenizer.is_special(int(token)) for token in tokens), text


def test_a_word_of_the_vocabulary_that_is_special_is_spelt_in_text(tmp_path: Path) -> None:
    raw = byte_level_json()
    raw["model"]["ignore_merges"] = True
    raw["pre_tokenizer"]["use_regex"] = False
    raw["model"]["vocab"]["<tool_call>"] = next(
        token["id"] for token in raw["added_tokens"] if token["content"] == "<tool_call>"
    )
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, raw), model_type="qwen3")
    tokens = tokenizer.encode([Segment("<tool_call>")])
    assert tokenizer.special_id("<tool_call>") not in tokens
    assert text_of(tokenizer, tokens) == b"<tool_call>"


def test_a_special_segment_is_exactly_its_token(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode(
        [Segment("<|im_start|>", special=True), Segment("us"), Segment("er\n")]
    )
    assert tokens[0] == byte_level.special_id("<|im_start|>")
    assert tokens[1:].tolist() == byte_level.encode([Segment("user\n")]).tolist()
    assert tokens.dtype == "int32"


def test_an_unknown_special_segment_is_an_error(byte_level: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="no special token '<nope>'"):
        byte_level.encode([Segment("<nope>", special=True)])


def test_a_lone_surrogate_is_replaced_not_fatal(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode([Segment("a\ud800b\ud83d\ude00")])
    assert text_of(byte_level, tokens).decode() == "a\ufffdb\U0001f600"


@pytest.mark.parametrize("fixture", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("seed", range(10))
def test_decoding_does_not_depend_on_the_split(
    fixture: str, seed: int, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(fixture)
    rng = random.Random(seed)
    tokens = [rng.randrange(tokenizer.vocab_size) for _ in range(300)]

    def flat(pushes: list[list[Segment]]) -> list[Segment]:
        merged: list[Segment] = []
        for segment in [s for push in pushes for s in push]:
            if merged and not segment.special and not merged[-1].special:
                merged[-1] = Segment(merged[-1].text + segment.text)
            else:
                merged.append(segment)
        return merged

    whole = IncrementalDecoder(tokenizer)
    expected = flat([whole.push(tokens), whole.finish()])
    split = IncrementalDecoder(tokenizer)
    pushes, start = [], 0
    while start < len(tokens):
        end = start + rng.choice([0, 1, 1, 2, 5])
        pushes.append(split.push(tokens[start:end]))
        start = end
    assert flat([*pushes, split.finish()]) == expected
    assert [s.text for s in expected if s.special] == [
        tokenizer.special_text(token) for token in tokens if tokenizer.is_special(token)
    ]


@pytest.mark.parametrize("text", HARD_TEXTS)
@pytest.mark.parametrize("fixture", ["byte_level", "sentencepiece"])
def test_no_push_ends_inside_a_character(
    fixture: str, text: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(fixture)
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.push([int(token)]) for token in tokenizer.encode([Segment(text)])]
    joined = "".join(segment.text for piece in pieces for segment in piece)
    assert "\ufffd" not in joined
    assert joined == (text if fixture == "byte_level" else text.replace("\u2581", " "))
    assert decoder.finish() == []


def test_a_character_cut_off_by_the_end_or_by_a_special_token_is_replaced(
    byte_level: Tokenizer,
) -> None:
    first_byte = int(byte_level.encode([Segment("\U0001f600")])[0])
    end = byte_level.special_id("<|im_end|>")
    assert end is not None
    decoder = IncrementalDecoder(byte_level)
    assert decoder.push([first_byte]) == []
    assert decoder.push([end]) == [Segment("\ufffd"), Segment("<|im_end|>", special=True)]
    assert decoder.push([first_byte]) == []
    assert decoder.finish() == [Segment("\ufffd")]


def test_end_of_turn_comes_from_the_configuration_and_the_chat_format(tmp_path: Path) -> None:
    raw = byte_level_json()
    ids = {token["content"]: token["id"] for token in raw["added_tokens"]}
    folder = write_tokenizer(
        tmp_path,
        raw,
        config={"model_type": "qwen3", "eos_token_id": ids["<think>"]},
        generation_config={"eos_token_id": [ids["<|endoftext|>"]]},
    )
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.end_of_turn_ids == {ids["<|endoftext|>"], ids["<|im_end|>"]}
    assert tokenizer.end_of_turn_id == ids["<|im_end|>"], "what the renderer writes"


def test_ids_of_the_embedding_alone_are_undefined_and_empty(tmp_path: Path) -> None:
    raw = byte_level_json()
    top = max(token["id"] for token in raw["added_tokens"])
    folder = write_tokenizer(tmp_path, raw, config={"model_type": "qwen3", "vocab_size": top + 65})
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == top + 65
    assert tokenizer.is_defined(top)
    assert not tokenizer.is_defined(top + 1)
    assert tokenizer.token_bytes(top + 1) == b""


def test_an_added_token_that_the_embedding_lacks_is_text(tmp_path: Path) -> None:
    """Gemma 3's 1B: its tokenizer has a token for images, its embedding has no row for it."""
    raw = byte_level_json()
    rows = max(token["id"] for token in raw["added_tokens"]) + 1
    folder = write_tokenizer(tmp_path / "own", raw)
    own = Tokenizer.load(folder, vocab_size=rows, model_type="qwen3")
    image = {**raw["added_tokens"][0], "id": rows, "content": "<image_soft_token>"}
    for place in ("listed", "in the vocabulary too"):
        more = json.loads(json.dumps(raw))
        more["added_tokens"].append(image)
        if place != "listed":
            more["model"]["vocab"][image["content"]] = rows
        found = Tokenizer.load(
            write_tokenizer(tmp_path / place, more), vocab_size=rows, model_type="qwen3"
        )
        assert found.without_rows == {image["content"]}
        assert found.specials == own.specials
        segments = [Segment("a <image_soft_token> b")]
        assert found.encode(segments).tolist() == own.encode(segments).tolist()
        with pytest.raises(TokenizerError, match="no special token"):
            found.encode([Segment(image["content"], special=True)])
    wider = Tokenizer.load(tmp_path / "listed", vocab_size=rows + 1, model_type="qwen3")
    assert not wider.without_rows
    assert wider.special_id(image["content"]) == rows


def test_the_text_part_of_a_wrapper_may_name_the_end_of_a_turn(tmp_path: Path) -> None:
    raw = byte_level_json()
    ids = {token["content"]: token["id"] for token in raw["added_tokens"]}
    inner = {"eos_token_id": ids["<think>"], "vocab_size": 700}
    config = {"model_type": "qwen3", "text_config": inner}
    found = Tokenizer.load(write_tokenizer(tmp_path, raw, config=config))
    named = Tokenizer.load(write_tokenizer(tmp_path / "b", raw), model_type="qwen3")
    assert found.end_of_turn_ids == named.end_of_turn_ids | {ids["<think>"]}
    assert found.vocab_size == 700


STRANGE = [None, True, -1, 1.5, 10**30, 1 << 24, -(10**20), "", "x", [], [1], {}, {"a": 1}, [[]]]


def places(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths to the parts of a JSON value, the first few of each."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(*at, key) for key in list(keys)[:12]]
    inner = [path for path in found if isinstance(value[path[-1]], dict | list)]
    return found + [path for key in inner for path in places(value[key[-1]], key)]


def refusal_of(folder: Path) -> str | None:
    try:
        Tokenizer.load(folder).encode([Segment("hello world")])
    except TokenizerError as error:
        return str(error)
    return None


def test_spoiled_files_are_read_or_refused_by_name(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed")
    draw = random.Random(seed)
    raw = byte_level_json()
    told = {"700": {"content": "<more>", "special": True}}
    whole = {
        "tokenizer.json": raw,
        "tokenizer_config.json": {"added_tokens_decoder": told},
        "generation_config.json": {"eos_token_id": [raw["added_tokens"][0]["id"]]},
        "config.json": {"model_type": "qwen3", "text_config": {"vocab_size": 800}},
    }
    for case in range(150):
        files = json.loads(json.dumps(whole))
        name = draw.choice(list(files))
        path = draw.choice(places(files[name]))
        spoiled = files[name]
        for key in path[:-1]:
            spoiled = spoiled[key]
        spoiled[path[-1]] = draw.choice(STRANGE)
        for file, content in files.items():
            (tmp_path / file).write_text(json.dumps(content))
        said = refusal_of(tmp_path)
        assert said is None or str(tmp_path) in said, (seed, case, name, path)
        assert said is None or len(said) < 1000


def without(raw: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in raw.items() if k != key}


def renamed(raw: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return json.loads(json.dumps(raw).replace(old, new))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "tokenizer.json: file not found"),
        ({"tokenizer.json": "{"}, "tokenizer.json: "),
        ({"tokenizer.json": "[]"}, "tokenizer.json: not a JSON object"),
        (
            {"tokenizer.json": {"model": {"type": "WordPiece", "vocab": {}}}},
            "only BPE is supported",
        ),
        ({"tokenizer.json": without(byte_level_json(), "decoder")}, "neither byte-level nor"),
        (
            {"tokenizer.json": byte_level_json(), "config.json": {"vocab_size": 100}},
            r"tokenizer.json: token id \d+ has no row in an embedding of 100",
        ),
        (
            {"tokenizer.json": byte_level_json(), "config.json": {"eos_token_id": 10**6}},
            "config.json: eos_token_id 1000000 is no token id",
        ),
        ({"tokenizer.json": byte_level_json()}, "no end-of-turn token in"),
        (
            {
                "tokenizer.json": renamed(byte_level_json(), "<|im_start|>", "<|other|>"),
                "config.json": {"model_type": "mamba"},
            },
            "config.json: no chat format for model type 'mamba'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_its_file(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(tmp_path)


def test_a_byte_without_a_token_is_refused(tmp_path: Path) -> None:
    raw = byte_level_json()
    del raw["model"]["vocab"]["z"]
    raw["model"]["merges"] = [m for m in raw["model"]["merges"] if "z" not in "".join(m)]
    with pytest.raises(TokenizerError, match="1 bytes have no token"):
        Tokenizer.load(write_tokenizer(tmp_path, raw), model_type="qwen3")


def test_the_fingerprint_tells_tokenizers_apart(tmp_path: Path) -> None:
    one = Tokenizer.load(write_tokenizer(tmp_path / "1", byte_level_json()), model_type="qwen3")
    same = Tokenizer.load(write_tokenizer(tmp_path / "2", byte_level_json()), model_type="qwen3")
    wider = Tokenizer.load(tmp_path / "1", vocab_size=4096, model_type="qwen3")
    assert one.fingerprint == same.fingerprint != wider.fingerprint


def test_the_two_shapes_have_their_families_special_tokens(
    byte_level: Tokenizer, sentencepiece: Tokenizer
) -> None:
    assert set(byte_level.specials) == set(CHATML_SPECIALS)
    assert set(sentencepiece.specials) == {"<unk>", "<s>", "</s>", *MISTRAL_SPECIALS}
