"""A model's tokenizer and chat format are read without its weights, and its template is heeded."""

import json
from pathlib import Path

import pytest

from runtime.model.sources import DEFAULT_MODEL, find_source
from sessions.command.settings import OptionError
from sessions.command.speech import speech_of
from tests.support import chat_templates
from tests.support.chat_templates import folder_with_template


def test_a_folder_whose_template_agrees_or_that_has_none_is_warned_of_nothing(
    tmp_path: Path,
) -> None:
    hermes = folder_with_template(tmp_path / "hermes", chat_templates.HERMES)
    for name in ("default", "random:llama-tiny", str(hermes)):
        assert speech_of(name, find_source(name)).warning is None


def test_a_folder_with_qwen3_coders_template_is_warned_of_with_both_formats(
    tmp_path: Path,
) -> None:
    coder = folder_with_template(tmp_path / "coder", chat_templates.QWEN3_CODER)
    told = speech_of(str(coder), find_source(str(coder))).warning
    assert told is not None
    assert "Qwen3-Coder does, <function=NAME>" in told
    assert 'Hermes does, <tool_call>{"name": ..., "arguments": ...}</tool_call>' in told


def test_a_tokenizer_that_no_format_fits_or_that_is_broken_is_an_option_at_fault(
    tmp_path: Path,
) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((DEFAULT_MODEL / name).read_bytes())
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = token["content"].replace("im_", "other_")
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(OptionError, match=f"--model {tmp_path}/config.json: no chat format"):
        speech_of(str(tmp_path), find_source(str(tmp_path)))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(OptionError, match=f"--model {tmp_path}/tokenizer.json: "):
        speech_of(str(tmp_path), find_source(str(tmp_path)))
