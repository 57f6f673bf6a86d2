"""Folders whose chat template is spoiled: judged, or refused in one line; never believed wrongly.

Three layers. What stands in the files is anything (``KEEPWARM_TEMPLATE_FILES``); what a template
writes is spoiled, without running one (``KEEPWARM_TEMPLATE_TEXTS``); templates themselves have
pieces left out, doubled or exchanged and are run (``KEEPWARM_TEMPLATE_RUNS``).
``KEEPWARM_TEMPLATE_SEED`` says which.
"""

import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime.chat_judge.conversations import Conversation, probes
from runtime.chat_judge.differences import differing, written
from runtime.chat_judge.judge import Refused, judge
from runtime.chat_judge.literals import Literals
from runtime.chat_judge.pieces import Unfit, pieces_of
from runtime.chat_judge.short_conversations import conversations
from runtime.chat_template import chat_template_of, special_tokens_of
from tests.support import judged_templates
from tests.support.byte_tokenizer import SPECIAL_TOKENS
from tools_api.chat_families import chat_format_named, chat_format_names
from tools_api.chat_generic import GenericFormat, chat_format_described, described

FILES = int(os.environ.get("KEEPWARM_TEMPLATE_FILES", "10000"))
TEXTS = int(os.environ.get("KEEPWARM_TEMPLATE_TEXTS", "1500"))
RUNS = int(os.environ.get("KEEPWARM_TEMPLATE_RUNS", "25"))
SEED = int(os.environ.get("KEEPWARM_TEMPLATE_SEED", "0"))
LITERALS = Literals(SPECIAL_TOKENS)
STRANGE: list[Any] = [
    *(None, True, 0, -1, 1e308, "", "x", "{{", "\u0000", "é" * 1000, [], [[]], {}, {"content": 1}),
    *([{"name": "default", "template": "{{ messages }}"}], [{"name": 1}], [{"template": "x"}]),
    *({"content": "<s>"}, [None, "x", {"name": "tool_use", "template": ["x"]}]),
]
ONE_CHARACTER = ("\n", " ", "x", "<|im_end|>", "<think>", "")


def spoiled_text(draw: random.Random, text: str) -> str:
    """A piece is left out, doubled, moved or replaced."""
    at, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
    end = min(end, at + draw.choice([1, 3, 40]))
    match draw.randrange(4):
        case 0:
            return text[:at] + text[end:]
        case 1:
            return text[:end] + text[at:]
        case 2:
            return text[:at] + draw.choice(ONE_CHARACTER) + text[at:]
    return text[:at] + draw.choice(ONE_CHARACTER) + text[end:]


def test_whatever_stands_in_the_files_is_a_template_or_none(tmp_path: Path) -> None:
    draw = random.Random(f"{SEED}/files")
    names = ("tokenizer_config.json", "chat_template.json", "special_tokens_map.json")
    fields = ("chat_template", "bos_token", "eos_token", "added_tokens_decoder")
    found = 0
    for case in range(FILES):
        name = draw.choice(names)
        value: Any = {field: draw.choice(STRANGE) for field in fields if draw.random() < 0.7}
        if draw.random() < 0.1:
            value = draw.choice(STRANGE)
        content = json.dumps(value).encode()
        if draw.random() < 0.2:
            at = draw.randrange(len(content) + 1)
            content = content[:at] + draw.choice([b"", b"\xff", b"{", b'"']) + content[at + 1 :]
        (tmp_path / name).write_bytes(content)
        template, tokens = chat_template_of(tmp_path), special_tokens_of(tmp_path)
        assert template is None or isinstance(template, str), case
        assert all(isinstance(text, str) for text in tokens.values()), case
        found += template is not None
    assert 0 < found < FILES


@pytest.mark.parametrize("name", ["qwen3", "qwen3-coder", "hermes"])
def test_pieces_of_spoiled_texts_write_every_text_or_are_none(name: str) -> None:
    draw = random.Random(f"{SEED}/texts/{name}")
    native = chat_format_named(name, LITERALS.has_token)
    whole = {each.name: written(native, each) for each in conversations()}
    refused = 0
    for case in range(-(-TEXTS // 3)):
        texts = dict(whole)
        for spoiled in draw.sample(sorted(texts), draw.randint(1, 3)):
            texts[spoiled] = spoiled_text(draw, texts[spoiled])
        if draw.random() < 0.1:
            del texts[draw.choice(sorted(texts))]
        try:
            found = pieces_of(texts, {}, LITERALS, chat_format_names())
            chat_format = GenericFormat(found.pieces, LITERALS.has_token)
        except (Unfit, ValueError) as error:
            refused += 1
            line = str(error)
            assert len(line.splitlines()) == 1, case
            assert len(line) < 800, (case, line)
            continue
        again = chat_format_described(described(found.pieces), LITERALS.has_token)
        for probe in probes():
            assert written(again, probe) == written(chat_format, probe), case
        assert _same_as_told(texts, chat_format), case
    assert 0 < refused < TEXTS


def _same_as_told(texts: Mapping[str, str], chat_format: GenericFormat) -> bool:
    """The first turns are those of the texts."""
    asked = [each for each in conversations() if each.name in ("a user", "an answer", "a prompt")]
    return all(
        differing(texts[each.name], "generic", chat_format, each) is None
        for each in asked
        if each.name in texts
    )


def test_spoiled_templates_are_judged_or_refused_in_one_line_and_soon() -> None:
    draw = random.Random(f"{SEED}/runs")
    whole = [judged_templates.QWEN3, judged_templates.QWEN3_CODER, judged_templates.HERMES]
    for case in range(RUNS):
        template = draw.choice(whole)
        for _ in range(draw.randint(1, 3)):
            template = spoiled_text(draw, template)
        began = time.process_time()
        try:
            found = judge(template, {"bos_token": "<|im_start|>"}, SPECIAL_TOKENS)
        except Refused as refused:
            line = str(refused)
            assert len(line.splitlines()) == 1, (case, line)
            assert len(line) < 2500, (case, line)
        else:
            chat_format = chat_format_described(found.description, LITERALS.has_token)
            written(chat_format, Conversation(name="", items=probes()[0].items))
        assert time.process_time() - began < 2, (case, template)
