"""Commands as newcomers type them: what is wrong is said in a line, before anything takes long."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from keepwarm.demo.child_server import ChildServer, child_server
from runtime.model.sources import DEFAULT_MODEL
from sessions.journal.sqlite import SqliteJournal
from tests.support import judged_templates
from tests.support.judged_templates import default_model_with

SMALL = ("--kv-cache-mib", "32", "--threads", "1", "--startup-profile-ms", "50")
LOADING = "engine loads"
"""Stands in the log as soon as a model is being loaded."""


def typed(*words: str, said: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``keepwarm WORDS`` in a new user's environment, with lines for its standard input."""
    return python("-m", "keepwarm", *words, said=said, **environment)


def python(*words: str, said: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python as a new user."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("KEEPWARM_")}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=kept | {"KEEPWARM_CONFIG": ""} | environment,
        input=said,
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


def test_a_folder_is_spoken_to_as_its_template_says_and_doctor_tells_how(tmp_path: Path) -> None:
    model = str(default_model_with(tmp_path / "m", judged_templates.QWEN3_CODER))
    with child_server(["--model", model, *SMALL], log=tmp_path / "log"):
        pass
    lines = (tmp_path / "log").read_text().splitlines()
    assert not [line for line in lines if "WARNING" in line and "compaction_key" not in line]
    assert [line for line in lines if "chat format=Qwen3-Coder" in line]
    told = findings("--model", model)["chat format"]
    assert told == "ok: Qwen3-Coder: the chat template writes 20 conversations as qwen3-coder does"
    assert findings("--model", model, "--chat-format", "hermes")["chat format"].startswith("note: ")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("COUNTS_ITS_TURNS", "at character 15 stands '3user"),
        ("DROPS_OUTPUTS", "drops what it is given: in 'one output'"),
    ],
)
def test_a_template_that_no_renderer_can_follow_is_told_with_the_place(
    template: str, said: str, tmp_path: Path
) -> None:
    model = str(default_model_with(tmp_path / "m", getattr(judged_templates, template)))
    line = refused("--model", model)
    assert said in line
    assert "in the probe '" in line
    assert "--chat-format NAME" in line
    assert "hermes" in line


@pytest.mark.parametrize("what", ["it loops for ever", "it writes 100 MB", "it raises"])
def test_a_template_that_does_harm_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    model = str(default_model_with(tmp_path / "m", judged_templates.HOSTILE[what]))
    assert f"--model {model}: the chat template" in refused("--model", model)


def test_a_folder_without_a_template_needs_its_formats_name(tmp_path: Path) -> None:
    model = default_model_with(tmp_path / "m", "")
    (model / "chat_template.jinja").unlink()
    assert "has no chat template that can be read" in refused("--model", str(model))
    assert "there is no chat format 'x'" in refused("--model", str(model), "--chat-format", "x")
    with child_server(
        ["--model", str(model), "--chat-format", "hermes", *SMALL], log=tmp_path / "log"
    ):
        pass


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
    (model / "chat_template.jinja").unlink()
    assert "the special tokens of no chat format" in refused("--model", str(model))
    assert findings("--model", str(model))["chat format"].startswith("fault: ")


# A server with keys, and who comes to it


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ChildServer, dict[str, str]]]:
    """A server with a tenant's key and a read-only one, by role."""
    folder = tmp_path_factory.mktemp("keyed")
    file, keys = folder / "tenants.toml", {}
    for role in ("tenant", "read-only"):
        words = ("keys", "new", "--name", role, "--tenant", "t", "--role", role)
        made = typed(*words, "--append", str(file))
        assert made.returncode == 0, made.stderr
        keys[role] = made.stdout.strip()
    options = ["--tenants-file", str(file), *SMALL]
    with child_server(options, log=folder / "log") as server:
        yield server, keys


PROGRAM = """\
import sys
from keepwarm import ApiError, Client, ConnectionLost, tool

def plain(x: int) -> int:
    return x

try:
    with Client() as client:
        session = client.session(tools=[plain] if "plain" in sys.argv else [])
        print(session.run("What do you do?", max_output_tokens=64, temperature=0).text)
except (ApiError, ConnectionLost, TypeError, ValueError) as error:
    print(f"{type(error).__name__}: {error}")
"""


def program(*words: str, **environment: str) -> str:
    """What a user's first program prints."""
    ran = python("-c", PROGRAM, *words, **environment)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_a_program_that_is_told_nothing_finds_its_server_and_key_in_the_environment(
    keyed: tuple[ChildServer, dict[str, str]],
) -> None:
    server, keys = keyed
    for url in (server.url, server.url.removesuffix("/v1")):
        said = program(KEEPWARM_URL=url, KEEPWARM_API_KEY=keys["tenant"])
        assert said == "I look things up with tools. What do you need?\n"
    assert "KEEPWARM_API_KEY" in program(KEEPWARM_URL=server.url)


def test_a_programs_mistakes_are_told_with_what_to_do(
    keyed: tuple[ChildServer, dict[str, str]],
) -> None:
    server, keys = keyed
    at = server.url.removesuffix("/v1")
    wrong = program(KEEPWARM_URL=f"{at}/api", KEEPWARM_API_KEY=keys["tenant"])
    assert f"KEEPWARM_URL is {at}/api; try {server.url}" in wrong
    looking = program(KEEPWARM_URL=server.url, KEEPWARM_API_KEY=keys["read-only"])
    assert "HTTP 403: This key is read-only" in looking
    assert "Take one with the role 'tenant'" in looking
    plain = program("plain", KEEPWARM_URL=server.url, KEEPWARM_API_KEY=keys["tenant"])
    assert plain.startswith("TypeError: one of tools is the function plain")
    assert "put @tool" in plain
    nobody = program(KEEPWARM_URL="http://127.0.0.1:1")
    assert "does a server ('keepwarm serve') run at this address?" in nobody
    misspelt = python("-c", PROGRAM, KEEPWARM_BASE_URL=server.url)
    assert "KEEPWARM_BASE_URL is unknown and has no effect; is KEEPWARM_URL meant?" in (
        misspelt.stderr
    )


def test_other_clients_are_told_the_path_that_they_lack(
    keyed: tuple[ChildServer, dict[str, str]],
) -> None:
    server, keys = keyed
    at, headers = server.url.removesuffix("/v1"), {"Authorization": f"Bearer {keys['tenant']}"}
    for path, meant in (
        ("/responses", "/v1/responses"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
    ):
        answer = httpx.post(at + path, json={}, headers=headers)
        assert answer.status_code == 404
        assert f"is {meant} meant?" in answer.json()["error"]["message"]
    headers = {"Authorization": f"Bearer {keys['read-only']}"}
    for path in ("responses", "chat/completions", "messages"):
        answer = httpx.post(f"{server.url}/{path}", json={}, headers=headers)
        assert answer.status_code == 403
        assert "role 'tenant'" in answer.json()["error"]["message"]


def test_a_conversation_knows_its_commands_and_says_the_rest_to_the_model(
    keyed: tuple[ChildServer, dict[str, str]],
) -> None:
    server, keys = keyed
    environment = {"KEEPWARM_URL": server.url, "KEEPWARM_API_KEY": keys["tenant"]}
    said = typed("chat", said="/help\n/hepl\n/usage\n", **environment)
    assert said.returncode == 0, said.stderr
    assert "/usage" in said.stdout
    assert "there is no command /hepl, /help lists those that are" in said.stdout
    assert "0 turns" in said.stdout, "nothing has gone to the model"
    assert "go on with" not in said.stdout
    asked = typed("chat", said="What do you do?\n/quit\nnever\n", **environment)
    assert "I look things up with tools" in asked.stdout
    nobody = typed("chat", said="hello\n", KEEPWARM_URL="http://127.0.0.1:1")
    assert nobody.returncode == 1
    assert "does a server ('keepwarm serve') run at this address?" in nobody.stdout


# The environment


def test_a_variable_that_nothing_reads_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    told = typed("serve", "--journal", str(tmp_path), KEEPWARM_PROT="1")
    warning, error = told.stderr.splitlines()
    assert "WARNING" in warning
    assert warning.endswith("KEEPWARM_PROT is unknown and has no effect; is KEEPWARM_PORT meant?")
    assert error.startswith("keepwarm: error: ")
    found = findings(KEEPWARM_MODLE="x")["environment"]
    assert found.startswith("note: the environment variable KEEPWARM_MODLE is unknown")
    assert found.endswith("is KEEPWARM_MODEL meant?")
    shown = typed("config", "show", "chat", KEEPWARM_CHAT_URL="http://h")
    assert shown.returncode == 0
    assert shown.stderr == (
        "keepwarm: warning: the environment variable KEEPWARM_CHAT_URL is unknown and has no "
        "effect; is KEEPWARM_URL meant?\n"
    )
