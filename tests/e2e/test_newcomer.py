"""Mistakes of a first hour: each is one line that names what was typed and says what to do.

Commands are run in this process, with an engine that must not be started: what is wrong is found
before a model is loaded. Programs talk to a scripted server, or to nobody.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import keepwarm
from keepwarm import (
    AsyncClient,
    Client,
    FunctionCallOutput,
    Hooks,
    Retries,
    Session,
    ToolContext,
    json_format,
    tool,
)
from keepwarm.commands.main import main
from keepwarm.testing import Cassette, ScriptedServer, call
from sessions.command import serve

NOWHERE = "/nowhere/at/all"


@pytest.fixture(autouse=True)
def nobodys_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of anybody's, and an engine that a command must not start."""
    import os

    for name in [name for name in os.environ if name.startswith("KEEPWARM_")]:
        monkeypatch.delenv(name)
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(serve, "EngineProcess", load)


# Commands: the words, what the line names, what it says to do

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("serv", "'serv'", "Did you mean 'serve'?"),
    ("sessions shwo x", "'shwo'", "Did you mean 'show'? See"),
    ("serve --prot 1", "'--prot'", "--port"),
    ("serve --modle x", "'--modle'", "--model"),
    ("serve --port", "'--port'", "requires an argument"),
    ("serve --port x", "--port 'x'", "whole number"),
    ("serve --port 99999", "--port", "65535"),
    ("serve extra", "(extra)", "--help"),
    (f"serve --model {NOWHERE}", NOWHERE, "--model"),
    ("serve --model hub:nonsense", "nonsense", "ORG/NAME"),
    ("serve --journal mysql://h/x", "mysql://...", "postgresql://"),
    (f"serve --journal {NOWHERE}/j", NOWHERE, "--journal"),
    ("serve --journal-keep-days x", "'x'", "number"),
    ("serve --kv-cache-mib lots", "'lots'", "whole number"),
    ("serve --threads -1", "--threads", "-1"),
    ("serve --quantization int9", "int9", "int8"),
    ("serve --max-context-tokens 0", "--max-context-tokens", "0"),
    ("serve --price input=x", "input=x", "--price"),
    ("serve --price inputs=3", "inputs", "input"),
    (f"serve --prices {NOWHERE}", NOWHERE, "--prices"),
    (f"serve --tenants-file {NOWHERE}", NOWHERE, "--tenants-file"),
    (f"serve --config {NOWHERE}", NOWHERE, "no such file"),
    ("serve --chat-format nonsense", "'nonsense'", "hermes"),
    ("serve --advertise h", "--advertise", "--cluster"),
    ("chat --url localhost:8080", "localhost:8080", "http://"),
    (f"chat --tools {NOWHERE}.py", NOWHERE, "--tools"),
    ("keys new --name a", "--tenant", "--tenant"),
    ("keys new --tenant t --role boss", "boss", "operator"),
    (f"sessions list --journal {NOWHERE}", NOWHERE, "no such file"),
    ("sessions delete", "NAME", "--help"),
    ("config show chatt", "'chatt'", "chat"),
    ("pull nonsense", "nonsense", "ORG/NAME"),
)


@pytest.mark.parametrize(("typed", "names", "advises"), COMMANDS)
def test_a_command_that_is_mistyped_says_so_in_a_line(
    typed: str, names: str, advises: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(typed.split())
    shown = capsys.readouterr()
    assert (status in (1, 2), shown.out) == (True, "")
    (line,) = shown.err.splitlines()
    assert line.startswith("keepwarm: error: ")
    assert names in line
    assert advises in line


@pytest.mark.parametrize(
    ("variable", "value", "names", "advises"),
    [
        ("KEEPWARM_PORT", "x", "KEEPWARM_PORT", "whole number"),
        ("KEEPWARM_MODEL", NOWHERE, NOWHERE, "KEEPWARM_MODEL"),
        ("KEEPWARM_JOURNAL", "mysql://h/x", "KEEPWARM_JOURNAL", "postgresql://"),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    variable: str,
    value: str,
    names: str,
    advises: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["serve"]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert names in line
    assert advises in line


# Programs: what is written, what the error names, what it says to do


@tool
def get_price(product: str) -> int:
    """Get a price."""
    return 24


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


@tool
def shop(context: ToolContext[list[str]]) -> str:
    """Look into the shop."""
    return str(context.value)


def untyped(product, many):  # type: ignore[no-untyped-def]
    return product, many


def starred(*products: str) -> str:
    return str(products)


def session(**options: Any) -> Session:
    return ScriptedServer(["hello", "again"]).client().session(**options)


def spent() -> Session:
    one = session(tools=[pay])
    one.run("go")
    return one


def inside_a_stream() -> None:
    one = session()
    stream = one.stream("go")
    next(stream)
    one.run("more")


def unanswered() -> None:
    one = ScriptedServer([call("get_price", product="x")]).client().session(tools=[get_price])
    one.respond("go")
    one.respond("more")


def answered_twice() -> None:
    one = session()
    one.owe([FunctionCallOutput(call_id="call_of_nobody", output="x")])
    one.run("go")


def nobody_there() -> None:
    Client("http://127.0.0.1:1/v1", retries=Retries(tries=0)).session().run("go")


PROGRAMS: tuple[tuple[Callable[[], Any], str, str], ...] = (
    (lambda: Client("localhost:8080"), "'localhost:8080'", "http://HOST:PORT/v1"),
    (lambda: Client("ftp://h/v1"), "'ftp://h/v1'", "http://HOST:PORT/v1"),
    (lambda: Client("http://"), "'http://'", "http://HOST:PORT/v1"),
    (lambda: Client("http://h:port/v1"), "'http://h:port/v1'", "http://HOST:PORT/v1"),
    (lambda: Client(api_key="key\n"), "api_key", "a line break at its end?"),
    (lambda: Client(sockets="turn"), "'turn'", "'session'"),  # type: ignore[arg-type]
    (lambda: Retries(tries=-1), "tries=-1", "tries"),
    (nobody_there, "127.0.0.1:1", "keepwarm serve"),
    (lambda: session(temprature=0), "temprature", "temperature"),
    (lambda: session(instruction="x"), "instruction", "instructions"),
    (lambda: session(max_tokens=5), "max_tokens", "max_output_tokens"),
    (lambda: session(sistem="x"), "sistem", "unknown turn options"),
    (lambda: session(budget={"outputs": 5}), "outputs", "output"),
    (lambda: session(budget={"scope": "all"}), "'all'", "tree"),
    (lambda: session(budget=5), "budget", "{'output'"),
    (lambda: session(labels=["a"]), "labels", "{'team'"),
    (lambda: session(name=3), "name", "a string"),
    (lambda: session(tools=get_price), "get_price", "not a list of tools"),
    (lambda: session(tools=[print]), "print", "put @tool"),
    (lambda: session(tools=[3]), "int", "@tool"),
    (lambda: session(tools=[get_price, get_price]), "'get_price'", "two tools"),
    (lambda: session(tools=[shop], context={"a": 1}), "shop", "context=..."),
    (lambda: session(tools=[pay], store=False), "pay", "approve=..."),
    (lambda: session(max_parallel_tools=0), "max_parallel_tools", "below 1"),
    (lambda: session(hooks=print), "hooks", "Hooks("),
    (lambda: session(approve=True), "approve", "a function"),
    (lambda: session().run("go", max_turns=0), "max_turns 0", "below 1"),
    (lambda: session().run("go", max_repairs=-1), "max_repairs -1", "below 0"),
    (lambda: session().run("go", temprature=0), "temprature", "temperature"),  # type: ignore[call-overload]
    (lambda: session().run(5), "input", "a string"),  # type: ignore[call-overload]
    (lambda: session().run({"role": "user"}), "input", "a list"),  # type: ignore[call-overload]
    (lambda: session().run("go", temperature=9), "temperature", "less than or equal to 2"),
    (lambda: session(keepwarm={"sesion": "x"}).run("go"), "keepwarm.sesion", "unknown key"),
    (lambda: session().run("go").output, "completed", "output_type"),
    (lambda: session().rewind(), "1 turns", "of 0"),
    (lambda: spent().rewind(to="resp_x"), "'resp_x'", "no turn of this session"),
    (lambda: next(session().items()), "no response here", "play a turn"),
    (lambda: session().before_compaction(), "session", "nothing of this session was compacted"),
    (lambda: session().approve("call_1"), "no response yet", "no call waits"),
    (lambda: spent().approve("call_1"), "'call_1'", "was made by this response"),
    (lambda: session().remove_tools(["x"]), "'x'", "it has none"),
    (lambda: session().add_tools([print]), "print", "put @tool"),  # type: ignore[list-item]
    (lambda: session(head="resp_x").run("go"), "'resp_x'", "not found"),
    (lambda: session().owe("done"), "outputs", "a list of outputs"),  # type: ignore[arg-type]
    (lambda: session().owe([5]), "outputs[0]", "FunctionCallOutput("),  # type: ignore[list-item]
    (lambda: session(keepwarm="x"), "keepwarm", "a dict"),
    (lambda: session().child(keepwarm=5), "keepwarm", "a dict"),  # type: ignore[arg-type]
    (lambda: session().child(temprature=1), "temprature", "temperature"),  # type: ignore[call-arg]
    (lambda: session().run("go", max_turns="3"), "max_turns", "whole number"),  # type: ignore[call-overload]
    (
        lambda: session().run("go", tools=[pay], tool_choice="pay"),
        "'pay'",
        "an object with its name",
    ),
    (lambda: session(name="a").child(name="a").run("go"), "parent_session", "a part of itself"),
    (inside_a_stream, "stream", "finish or close it first"),
    (unanswered, "call_id", "No tool output found"),
    (answered_twice, "'call_of_nobody'", "No tool call found"),
    (lambda: tool(timeout_s=0)(starred), "timeout_s 0", "above 0"),
    (lambda: tool(retries=-1)(starred), "retries -1", "below 0"),
    (lambda: tool(read_onyl=True)(len), "read_onyl", "read_only"),
    (lambda: tool(untyped), "product", "type"),
    (lambda: tool(starred), "products", "*"),
    (lambda: tool(3), "int", "function"),  # type: ignore[call-overload]
    (lambda: Hooks(timeout_s=0), "timeout_s 0", "above 0"),
    (lambda: Hooks(before_turns=print), "before_turns", "before_turn"),  # type: ignore[call-arg]
    (lambda: json_format(3), "3", "type"),
    (lambda: json_format({"type": "object"}), "'object'", "no type that has a JSON schema"),
    (lambda: ScriptedServer("turns.jsonl"), "str", "a list of answers"),
    (lambda: keepwarm.Clinet, "Clinet", "Client"),
    (lambda: Cassette(NOWHERE), NOWHERE, "No such file"),
    (lambda: ScriptedServer([]).client().session().run("go"), "0 answers", "give it one more"),
    (lambda: ScriptedServer([3]).client().session().run("go"), "int", "a text, call(...)"),
)


@pytest.mark.parametrize(("write", "names", "advises"), PROGRAMS)
def test_a_program_with_a_mistake_says_so_in_a_line(
    write: Callable[[], Any], names: str, advises: str
) -> None:
    with pytest.raises(Exception) as caught:
        write()
    told = str(caught.value)
    assert not isinstance(caught.value, AssertionError)
    assert len(told.splitlines()) == 1, told
    assert names in told
    assert advises in told


@pytest.mark.parametrize(
    ("variable", "value", "names", "advises"),
    [
        ("KEEPWARM_URL", "localhost:8080", "KEEPWARM_URL 'localhost:8080", "http://HOST:PORT/v1"),
        ("KEEPWARM_URL", "ftp://h", "KEEPWARM_URL", "http://HOST:PORT/v1"),
        ("KEEPWARM_API_KEY", "key\n", "KEEPWARM_API_KEY", "a line break at its end?"),
    ],
)
def test_a_variable_of_a_program_is_named(
    variable: str, value: str, names: str, advises: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError) as caught:
        Client()
    assert names in str(caught.value)
    assert advises in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [("KEEPWARM_BASE_URL", "KEEPWARM_URL"), ("KEEPWARM_APIKEY", "KEEPWARM_API_KEY")],
)
def test_a_variable_that_nothing_reads_is_told_with_the_one_that_is_meant(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        AsyncClient("http://h/v1")
    (warned,) = [str(each.message) for each in caught]
    assert variable in warned
    assert f"is {meant} meant?" in warned


def test_sixty_mistakes_are_told() -> None:
    assert len(COMMANDS) + len(PROGRAMS) + 8 >= 60
