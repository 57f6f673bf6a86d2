"""A model's tokenizer and chat format are read without its weights, as its template says."""

import json
import shutil
from pathlib import Path

import pytest

from runtime.model.sources import BYTE_TOKENIZER, DEFAULT_MODEL, find_source
from sessions.command.settings import OptionError
from sessions.command.speech import Speech, speech_of
from tests.support import judged_templates as templates
from tests.support.judged_templates import default_model_with
from tools_api.chat_format import TemplateOptions
from tools_api.chat_generic import chat_format_described
from tools_api.raw_calls import RawCalls


def speech(model: Path | str, **how: str) -> Speech:
    return speech_of(str(model), find_source(str(model)), **how)


def refusal(model: Path, **how: str) -> str:
    with pytest.raises(OptionError) as caught:
        speech(model, **how)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    return line


def test_models_that_come_along_are_not_judged() -> None:
    for name in ("default", "random:llama-tiny"):
        found = speech(name)
        assert (found.chat_format.name, found.description) == ("Hermes", None)
        assert (found.how, found.warning) == ("", None)


def test_a_copy_of_the_default_model_says_by_its_template_what_it_is(tmp_path: Path) -> None:
    shutil.copytree(DEFAULT_MODEL, tmp_path / "m")
    found = speech(tmp_path / "m")
    assert (found.chat_format.name, found.description) == ("Hermes", None)
    assert "as hermes does" in found.how


def test_the_byte_tokenizers_template_is_qwen3s(tmp_path: Path) -> None:
    shutil.copytree(DEFAULT_MODEL, tmp_path / "m")
    for file in BYTE_TOKENIZER.iterdir():
        shutil.copyfile(file, tmp_path / "m" / file.name)
    assert "as qwen3 does" in speech(tmp_path / "m").how


def test_a_folder_of_qwen3_coder_is_spoken_to_as_it_was_trained(tmp_path: Path) -> None:
    found = speech(default_model_with(tmp_path / "m", templates.QWEN3_CODER))
    assert (found.description, found.warning) == ("qwen3-coder", None)
    assert isinstance(found.chat_format.calls, RawCalls)


def test_what_other_processes_are_told_makes_the_same_format(tmp_path: Path) -> None:
    found = speech(default_model_with(tmp_path / "m", templates.NEWLINE_AFTER_TURNS))
    assert found.description is not None
    told = chat_format_described(
        found.description, lambda name: found.tokenizer.special_id(name) is not None
    )
    assert told.calls == found.chat_format.calls
    options = TemplateOptions()
    assert told.header("a", (), options) == found.chat_format.header("a", (), options)


def test_a_refused_template_is_told_with_its_place_and_the_way_out(tmp_path: Path) -> None:
    folder = default_model_with(tmp_path / "m", templates.COUNTS_ITS_TURNS)
    line = refusal(folder)
    assert line.startswith(f"--model {folder}: the chat template agrees with no renderer of ours")
    assert "at character" in line
    assert "--chat-format NAME" in line
    assert "hermes" in line
    named = speech(folder, chat_format="hermes")
    assert (named.chat_format.name, named.how) == ("Hermes", "--chat-format names it")


def test_a_template_may_not_write_a_token_that_the_embedding_lacks(tmp_path: Path) -> None:
    """Beyond it may only be one that is never written."""
    folder = tmp_path / "m"
    shutil.copytree(DEFAULT_MODEL, folder)
    rows = find_source(str(folder)).vocab_size
    path = folder / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["added_tokens"].append({**raw["added_tokens"][0], "id": rows, "content": "<|image|>"})
    path.write_text(json.dumps(raw))
    assert speech(folder).tokenizer.without_rows == {"<|image|>"}
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if false %}<|image|>{% endif %}")
    line = refusal(folder)
    assert "the chat template writes '<|image|>', which has no row in an embedding" in line


def test_a_format_that_is_named_goes_before_the_template_and_is_warned_of(tmp_path: Path) -> None:
    folder = default_model_with(tmp_path / "m", templates.QWEN3_CODER)
    named = speech(folder, chat_format="hermes")
    assert named.chat_format.name == "Hermes"
    assert named.warning is not None
    assert "as Qwen3-Coder does" in named.warning
    assert speech("default", chat_format="qwen3-coder").description == "qwen3-coder"
    assert "there is no chat format 'x'; there are qwen3" in refusal(folder, chat_format="x")
    assert "no special token <|start|>" in refusal(folder, chat_format="harmony")


@pytest.mark.parametrize("broken", [False, True])
def test_a_folder_without_a_template_needs_a_name(broken: bool, tmp_path: Path) -> None:
    folder = default_model_with(tmp_path / "m", "")
    (folder / "chat_template.jinja").unlink()
    if broken:
        (folder / "chat_template.jinja").mkdir()
    line = refusal(folder)
    assert "has no chat template that can be read" in line
    assert "--chat-format NAME, where its tokenizer fits" in line
    assert speech(folder, chat_format="hermes").description is None


def test_a_tokenizer_that_no_format_fits_or_that_is_broken_is_an_option_at_fault(
    tmp_path: Path,
) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((DEFAULT_MODEL / name).read_bytes())
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = token["content"].replace("im_", "other_")
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "the special tokens of no chat format" in refusal(tmp_path)
    assert "no special token <|im_start|>" in refusal(tmp_path, chat_format="hermes")
    (tmp_path / "tokenizer.json").write_text("{")
    assert refusal(tmp_path).startswith(f"--model {tmp_path}/tokenizer.json: ")
