"""A template that writes calls in another way than the chosen format is known by its signs."""

import pytest

from tests.support import chat_templates, judged_templates
from tests.support.chat_models import FORMATS, format_of
from tools_api.call_signatures import mismatch, writing_of
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import ChatFormat

CHATML = {"<|im_start|>", "<|im_end|>"}
HERMES = {*CHATML, "<tool_call>", "</tool_call>"}
LLAMA = {"<|start_header_id|>", "<|eot_id|>"}
MISTRAL = {"[INST]", "[/INST]", "[TOOL_CALLS]"}
NAMES = {
    "HERMES": "Hermes",
    "QWEN3_CODER": "Qwen3-Coder",
    "GLM": "GLM-4.5",
    "MISTRAL": "Mistral",
    "MISTRAL_V11": "Mistral v11 and later",
    "LLAMA": "Llama 3.1",
    "HARMONY": "harmony (gpt-oss)",
    "DEEPSEEK": "DeepSeek V3.1",
}
OWN = [(HERMES, "HERMES"), (LLAMA, "LLAMA"), (MISTRAL, "MISTRAL")]


def chosen(tokens: set[str]) -> ChatFormat:
    return chat_format_for("llama", tokens.__contains__)


@pytest.mark.parametrize(("template", "name"), NAMES.items())
def test_a_way_of_writing_calls_is_known_by_its_template(template: str, name: str) -> None:
    found = writing_of(getattr(chat_templates, template))
    assert found is not None
    assert found.name == name


def test_minimax_m3s_way_is_known_by_the_token_before_its_tags() -> None:
    row = FORMATS["minimax-m3"]
    template = judged_templates.minimax_m3(row["tokens"])
    assert mismatch(template, format_of(row)) is None
    told = mismatch(template, format_of(FORMATS["minimax-m2"])) or ""
    assert "as MiniMax M3 does, ]<]minimax[>[<invoke" in told


def test_a_template_without_calls_says_nothing_of_them() -> None:
    assert writing_of(chat_templates.WITHOUT_CALLS) is None
    for tokens, _ in OWN:
        assert mismatch(chat_templates.WITHOUT_CALLS, chosen(tokens)) is None


@pytest.mark.parametrize(("tokens", "own"), OWN)
@pytest.mark.parametrize("template", NAMES)
def test_every_other_way_than_the_chosen_one_is_told_with_both_names(
    tokens: set[str], own: str, template: str
) -> None:
    told = mismatch(getattr(chat_templates, template), chosen(tokens))
    if template == own:
        assert told is None
        return
    assert told is not None
    assert f"as {NAMES[template]} does" in told
    assert f"as {NAMES[own]} does" in told
    assert "\n" not in told


def test_a_format_that_writes_no_calls_is_told_where_the_template_does() -> None:
    told = mismatch(chat_templates.HERMES, chosen(CHATML))
    assert told is not None
    assert "no calls can be written" in told
