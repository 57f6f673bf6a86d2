"""The template of a folder is found wherever it stands, and what cannot be read is none."""

import json
from pathlib import Path

import pytest

from runtime.chat_template import MAX_BYTES, chat_template_of


def stated(folder: Path, value: object, file: str = "tokenizer_config.json") -> None:
    (folder / file).write_text(json.dumps({"chat_template": value}))


def several(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "template": f"of {name}"} for name in names]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("one", "one"),
        (several("rag", "default", "tool_use"), "of tool_use"),
        (several("rag", "default"), "of default"),
        (several("rag"), "of rag"),
        ([], None),
        (3, None),
        ([{"name": "default", "template": 3}, "stray"], None),
        (None, None),
    ],
)
def test_of_several_the_one_for_tools_counts(
    value: object, found: str | None, tmp_path: Path
) -> None:
    stated(tmp_path, value)
    assert chat_template_of(tmp_path) == found


def test_a_file_of_its_own_goes_before_what_a_configuration_states(tmp_path: Path) -> None:
    assert chat_template_of(tmp_path) is None
    stated(tmp_path, "processor's", "chat_template.json")
    assert chat_template_of(tmp_path) == "processor's"
    stated(tmp_path, "tokenizer's")
    assert chat_template_of(tmp_path) == "tokenizer's"
    (tmp_path / "chat_template.jinja").write_text("its own")
    assert chat_template_of(tmp_path) == "its own"
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "rag.jinja").write_text("for documents")
    assert chat_template_of(tmp_path) == "its own"
    (more / "tool_use.jinja").write_text("for tools")
    assert chat_template_of(tmp_path) == "for tools"


def test_what_cannot_be_read_is_no_template(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    assert chat_template_of(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert chat_template_of(tmp_path) is None
    (tmp_path / "chat_template.jinja").mkdir()
    assert chat_template_of(tmp_path) is None
    with (tmp_path / "chat_template.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert chat_template_of(tmp_path) is None
    assert chat_template_of(tmp_path / "nowhere") is None
