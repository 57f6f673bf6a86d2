"""Commands as newcomers type them: what is wrong is said in a line, before anything takes long."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from keepwarm.demo.child_server import child_server
from runtime.model.sources import DEFAULT_MODEL
from sessions.journal.sqlite import SqliteJournal
from tests.support import chat_templates
from tests.support.chat_templates import folder_with_template

SMALL = ("--kv-cache-mib", "32", "--threads", "1", "--startup-profile-ms", "50")
LOADING = "engine loads"
"""Stands in the log as soon as a model is being loaded."""


def typed(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``keepwarm WORDS`` in a new user's environment."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("KEEPWARM_")}
    return subprocess.run(
        [sys.executable, "-m", "keepwarm", *words],
        capture_output=True,
        text=True,
        env=kept | {"KEEPWARM_CONFIG": ""} | environment,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )


def refused(*words: str, **environment: str) -> str:
    """The one line with which ``keepwarm serve WORDS`` ends before it loads a model."""
    told = typed("serve", "--port", "0", *SMALL, *words, **environment)
    assert told.returncode in (1, 2), told.stderr
    assert told.stdout == ""
    assert LOADING not in told.stderr
    assert "Traceback" not in told.stderr
    (line,) = told.stderr.splitlines()
    assert line.startswith("keepwarm: error: ")
    return line


def findings(*words: str, **environment: str) -> dict[str, str]:
    """What ``keepwarm doctor WORDS`` finds, by what it looked at."""
    told = typed("doctor", "--port", "0", *words, **environment)
    assert told.stderr == ""
    lines = [line.split(": ", 2) for line in told.stdout.splitlines() if line[0] != " "]
    assert told.returncode == int("fault" in [line[0] for line in lines])
    return {what: f"{verdict}: {found}" for verdict, what, found in lines}


def stretched(folder: Path, **scaling: object) -> str:
    """The default model, trained at 512 tokens, with a ``rope_scaling``."""
    shutil.copytree(DEFAULT_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": 512, "rope_scaling": scaling}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


# The context


@pytest.mark.parametrize(
    ("options", "context"), [((), 2048), (("--max-context-tokens", "1024"), 1024)]
)
def test_a_folder_scaled_as_model_cards_tell_has_the_longer_context(
    options: tuple[str, ...], context: int, tmp_path: Path
) -> None:
    model = stretched(tmp_path / "m", type="yarn", factor=4.0, original_max_position_embeddings=512)
    words = ["--model", model, *SMALL, *options]
    with child_server(words, log=tmp_path / "log") as server, httpx.Client(timeout=60) as client:
        listed = client.get(f"{server.url}/models").json()["data"]
        assert {each["max_model_len"] for each in listed} == {context}
        asked = {"input": "w x y " * 120, "max_output_tokens": 2}
        answer = client.post(f"{server.url}/responses", json=asked).json()
        assert answer["error"] is None
        assert answer["usage"]["input_tokens"] > 512


def test_a_context_that_the_model_does_not_have_is_refused_with_both_numbers(
    tmp_path: Path,
) -> None:
    model = stretched(tmp_path / "m", type="yarn", factor=4.0)
    line = refused("--model", model, "--max-context-tokens", "2049")
    assert "--max-context-tokens is 2049" in line
    assert "2048 tokens: give 2048 or less" in line
    line = refused("--model", model, KEEPWARM_MAX_CONTEXT_TOKENS="4096")
    assert "KEEPWARM_MAX_CONTEXT_TOKENS is 4096" in line
    found = findings("--model", model, "--max-context-tokens", "2049")["context"]
    assert found.startswith("fault: --max-context-tokens is 2049")
    assert "2048" in found


# The chat format


@pytest.mark.parametrize("template", ["HERMES", "QWEN3_CODER"])
def test_a_template_that_writes_calls_otherwise_is_told_at_the_start_and_by_doctor(
    template: str, tmp_path: Path
) -> None:
    text = getattr(chat_templates, template)
    model = str(folder_with_template(tmp_path / "m", text))
    with child_server(["--model", model, *SMALL], log=tmp_path / "log"):
        pass
    warned = [line for line in (tmp_path / "log").read_text().splitlines() if "WARNING" in line]
    doctored = findings("--model", model)["chat format"]
    if template == "HERMES":
        assert warned == []
        assert doctored == "ok: Hermes"
        return
    (line,) = warned
    for told in (line, doctored):
        assert "Qwen3-Coder does, <function=" in told
        assert "Hermes does, <tool_call>" in told
    assert doctored.startswith("note: ")


# The journal


def test_a_bad_journal_is_told_before_the_model_is_loaded_and_by_doctor(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no journal at all " * 100)
    SqliteJournal(tmp_path / "held", fingerprint=b"").close()
    held = SqliteJournal(tmp_path / "held", fingerprint=b"")
    for place, said in (
        (tmp_path / "text", "is no journal"),
        (tmp_path, "it is a folder"),
        (tmp_path / "nowhere" / "j", "cannot be opened"),
        (tmp_path / "held", "another server's"),
    ):
        assert said in refused("--journal", str(place))
    held.close()
    found = findings("--journal", str(tmp_path / "text"))["journal"]
    assert found.startswith("fault: ")
    assert "is no journal" in found
    assert "neither a file" in refused("--journal", "mysql://localhost/x")
    assert "cannot be made" in refused(XDG_STATE_HOME="/proc/nowhere")


def test_prices_that_the_model_does_not_have_are_told_before_it_is_loaded(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[models.another]\ninput = 1\ncached = 1\noutput = 1\n")
    assert "has no prices of the model default" in refused("--prices", str(prices))


def test_a_tokenizer_that_no_chat_format_fits_is_told_before_the_model_is_loaded(
    tmp_path: Path,
) -> None:
    model = tmp_path / "m"
    shutil.copytree(DEFAULT_MODEL, model)
    text = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").write_text(text.replace("<|im_start|>", "<|other|>"))
    assert f"--model {model}/tokenizer.json: no chat format" in refused("--model", str(model))
    assert findings("--model", str(model))["chat format"].startswith("fault: ")
