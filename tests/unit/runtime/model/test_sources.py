"""What a model's name stands for, and how long its transcripts may be, without torch."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.model.config import LoadError
from runtime.model.presets import random_model_config
from runtime.model.sources import (
    BYTE_TOKENIZER,
    DEFAULT_MODEL,
    check_context,
    find_source,
    folder_of,
)
from tests.support.architecture import ROOT


def test_a_name_is_a_folder_the_default_or_a_random_model() -> None:
    default, drawn = find_source("default"), find_source("random:llama-tiny")
    assert (default.folder, default.tokenizer_folder) == (DEFAULT_MODEL, DEFAULT_MODEL)
    assert (drawn.folder, drawn.tokenizer_folder) == (None, BYTE_TOKENIZER)
    assert drawn.config == random_model_config("llama-tiny")
    assert (drawn.model_type, drawn.vocab_size) == ("llama", drawn.config.vocab_size)
    assert find_source(str(DEFAULT_MODEL)).config == default.config
    assert folder_of("~/models") == Path.home() / "models"


@pytest.mark.parametrize(
    ("name", "said"), [("random:x", "no random model 'x'"), ("/nowhere/x", "no such folder")]
)
def test_what_is_not_there_is_a_load_error(name: str, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        find_source(name)


def test_a_name_of_the_hub_without_its_prefix_is_told_how_it_is_fetched() -> None:
    with pytest.raises(LoadError, match="--model hub:Qwen/Qwen3"):
        find_source("Qwen/Qwen3-0.6B")
    for name in ("/nowhere/x", "./models/x", "x", "../a/b"):
        with pytest.raises(LoadError) as told:
            find_source(name)
        assert "downloaded" not in str(told.value)


def test_a_context_is_at_most_what_the_model_was_made_for() -> None:
    config = replace(random_model_config("llama-tiny"), max_context_tokens=1000)
    for asked in (None, 16, 1000):
        check_context("m", config, asked)
    with pytest.raises(LoadError, match=r"max_context_tokens is 1001, .* m has .* of 1000 tokens"):
        check_context("m", config, 1001)


def test_no_torch_is_needed_for_it() -> None:
    program = (
        "import sys; from runtime.model.sources import find_source\n"
        "find_source('default'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
