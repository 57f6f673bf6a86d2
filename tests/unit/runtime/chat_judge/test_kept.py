"""What was found out of a template is kept for its like alone, and never believed unread."""

import json
import logging
from pathlib import Path

import pytest

from runtime.chat_judge import kept
from runtime.chat_judge.judge import Judgement, Refused
from runtime.chat_judge.kept import judged
from tests.support.byte_tokenizer import SPECIAL_TOKENS, files

SPECIALS = {name: 256 + i for i, name in enumerate(SPECIAL_TOKENS)}


class Counted:
    """In the judge's place."""

    def __init__(self, description: str = "hermes") -> None:
        self.calls = 0
        self.description = description

    def __call__(self, template: str, *rest: object, response_template: object) -> Judgement:
        self.calls += 1
        if template == "bad":
            raise Refused("no")
        return Judgement(description=self.description, how="so")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(kept, "judge", counted)
    return counted


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, text in files().items():
        (folder / name).write_text(text)
    return folder


def test_the_second_start_reads_what_the_first_found_out(
    judge: Counted, model: Path, tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    first = judged("t", model, SPECIALS, cache)
    assert judged("t", model, SPECIALS, cache) == first
    assert judge.calls == 1
    judged("other", model, SPECIALS, cache)
    assert judge.calls == 2
    for cache_folder in (None, ""):
        judged("t", model, SPECIALS, cache_folder)
    assert judge.calls == 4


def test_another_tokenizer_role_or_version_is_judged_anew(
    judge: Counted, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = str(tmp_path / "cache")
    judged("t", model, SPECIALS, cache)
    (model / "tokenizer.json").write_text(" " + (model / "tokenizer.json").read_text())
    judged("t", model, SPECIALS, cache)
    assert judge.calls == 2
    (model / "special_tokens_map.json").write_text('{"bos_token": "<|im_start|>"}')
    judged("t", model, SPECIALS, cache)
    assert judge.calls == 3
    judged("t", model, SPECIALS | {"<new>": 300}, cache)
    assert judge.calls == 4
    monkeypatch.setattr(kept, "__version__", "another")
    judged("t", model, SPECIALS, cache)
    assert judge.calls == 5


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"description": "hermes"},
        {"description": "nothing known", "how": "so", "no_tools": ""},
        {"description": "harmony", "how": "so", "no_tools": ""},
        {"description": "{}", "how": "so", "no_tools": ""},
        {"description": 1, "how": "so", "no_tools": ""},
        {"description": "hermes", "how": "so", "no_tools": "", "more": ""},
    ],
)
def test_a_file_that_says_something_else_counts_as_none(
    content: object,
    judge: Counted,
    model: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    judged("t", model, SPECIALS, str(tmp_path / "cache"))
    (file,) = (tmp_path / "cache").iterdir()
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"content": content}))
    with caplog.at_level(logging.WARNING):
        found = judged("t", model, SPECIALS, str(tmp_path / "cache"))
    assert (found.description, judge.calls) == ("hermes", 2)
    assert "is not used" in caplog.text
    assert judged("t", model, SPECIALS, str(tmp_path / "cache")) == found
    assert judge.calls == 2


def test_a_refusal_is_not_kept(judge: Counted, model: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(Refused):
            judged("bad", model, SPECIALS, str(tmp_path / "cache"))
    assert judge.calls == 2
    assert not (tmp_path / "cache").exists()
