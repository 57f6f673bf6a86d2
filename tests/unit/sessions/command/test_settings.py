"""A value is found in the right place, checked alike wherever it comes from, and its place told."""

from pathlib import Path
from typing import Any

import pytest

from keepwarm.commands.registry import SETTINGS as COMMANDS
from sessions.command.settings import (
    CONFIG_VARIABLE,
    OTHER_VARIABLES,
    OptionError,
    Setting,
    Values,
    config_path,
    read_config,
    resolve,
    stray_variables,
)
from tools_api.sdk.environment import meant_by

SETTINGS = (
    Setting(name="port", kind="whole", default=1, bounds=(0, 9), help="h"),
    Setting(name="drain_seconds", kind="number", default=2.5, bounds=(0, 5), help="h"),
    Setting(name="mode", default="a", choices=("a", "b"), help="h"),
    Setting(name="tools", kind="path", help="h"),
    Setting(name="allow_origin", kind="list", default=(), help="h"),
    Setting(name="quiet", kind="switch", default=False, help="h"),
)
VARIABLES = [setting.variable for settings in COMMANDS.values() for setting in settings]
KINDS = {setting.name: setting.kind for setting in COMMANDS["serve"] if not setting.choices}
TEXTS = ("text", "path", "list")
KNOWN = {"serve": SETTINGS, "chat": (Setting(name="url", prefix="CHAT_", help="h"),)}


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def values(*, file: Path | None = None, typed: dict[str, Any] | None = None, **env: str) -> Values:
    config = read_config(file, KNOWN)
    return resolve("serve", SETTINGS, typed=typed or {}, environment=env, file=config)


def test_what_is_typed_goes_before_the_environment_the_file_and_the_default(tmp_path: Path) -> None:
    path = write(tmp_path, "[serve]\nport = 2\n")
    found = [
        values(),
        values(file=path),
        values(file=path, KEEPWARM_PORT="3"),
        values(file=path, KEEPWARM_PORT="3", typed={"port": "4"}),
    ]
    assert [each["port"] for each in found] == [1, 2, 3, 4]
    assert [each.found("port").origin for each in found] == [
        *("default", "file", "environment", "typed"),
    ]
    assert [each.label("port") for each in found] == [
        *("--port", f"{path}: serve.port", "KEEPWARM_PORT", "--port"),
    ]


def test_every_kind_is_the_same_from_every_place(tmp_path: Path) -> None:
    wanted = {
        "port": 7,
        "drain_seconds": 0.5,
        "mode": "b",
        "tools": Path("/t.py"),
        "allow_origin": ["x", "y"],
        "quiet": True,
    }
    text = {
        "port": "7",
        "drain_seconds": "0.5",
        "mode": "b",
        "tools": "/t.py",
        "allow_origin": "x, y",
        "quiet": "yes",
    }
    toml = (
        'port = 7\ndrain-seconds = 0.5\nmode = "b"\ntools = "/t.py"\n'
        'allow_origin = ["x", "y"]\nquiet = true\n'
    )
    from_environment = {f"KEEPWARM_{name.upper()}": value for name, value in text.items()}
    assert dict(values(typed=text | {"allow_origin": ("x", "y")})) == wanted
    assert dict(values(**from_environment)) == wanted
    assert dict(values(file=write(tmp_path, f"[serve]\n{toml}"))) == wanted


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("port", "x", "'x' is not a whole number"),
        ("port", "1.5", "'1.5' is not a whole number"),
        ("port", "10", "10 is not in 0..9"),
        ("drain_seconds", "nan", "nan is not in 0..5"),
        ("mode", "c", "'c' is not one of a, b"),
        ("quiet", "maybe", "'maybe' is not true or false"),
    ],
)
def test_a_bad_text_is_told_with_the_place_it_stands_in(
    name: str, text: str, complaint: str
) -> None:
    with pytest.raises(OptionError) as caught:
        values(typed={name: text})
    assert str(caught.value) == f"--{name.replace('_', '-')} {complaint}"
    variable = f"KEEPWARM_{name.upper()}"
    with pytest.raises(OptionError) as caught:
        values(**{variable: text})
    assert str(caught.value) == f"{variable} {complaint}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[serve]\nprot = 1", "serve.prot is unknown; is port meant?"),
        ("[serve]\nzzz = 1", "serve.zzz is unknown; known: allow_origin, drain_seconds"),
        ("[server]\nport = 1", "[server] is unknown; is serve meant?"),
        ("port = 1", "[port] is unknown"),
        ("[chat]\nurls = 'x'", "chat.urls is unknown; is url meant?"),
        ("serve = 3", "[serve] is unknown"),
        ('[serve]\nport = "1"', "serve.port is '1', not a whole number"),
        ("[serve]\nport = true", "serve.port is True, not a whole number"),
        ("[serve]\nport = 10", "serve.port 10 is not in 0..9"),
        ("[serve]\nmode = 'c'", "serve.mode 'c' is not one of a, b"),
        ("[serve]\nallow_origin = 'x'", "serve.allow_origin is 'x', not a list of texts"),
        ("[serve\n", "not TOML: "),
        (f"x = {'9' * 5_000}\n", "not TOML: "),
        (f"x = {'[' * 5_000}\n", "not TOML: "),
    ],
)
def test_a_file_is_refused_by_the_key_that_is_wrong(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(OptionError) as caught:
        read_config(path, KNOWN)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert complaint in message
    assert "\n" not in message


def test_a_file_has_a_most_of_bytes(tmp_path: Path) -> None:
    filler = "#" * (1024 * 1024)
    assert read_config(write(tmp_path, filler), KNOWN) is not None
    with pytest.raises(OptionError, match="longer than 1048576 bytes"):
        read_config(write(tmp_path, filler + "#"), KNOWN)


def test_the_file_is_the_one_typed_then_the_variables_then_the_users_own(tmp_path: Path) -> None:
    home, own = {"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path / "keepwarm" / "config.toml"
    assert config_path(None, home) is None
    own.parent.mkdir()
    own.write_text("")
    other = write(tmp_path, "")
    assert config_path(None, home) == own
    assert config_path(None, {"HOME": str(tmp_path)}) is None
    assert config_path(None, home | {CONFIG_VARIABLE: str(other)}) == other
    assert config_path(str(own), home | {CONFIG_VARIABLE: str(other)}) == own
    assert config_path("", home) is None
    assert config_path(None, home | {CONFIG_VARIABLE: ""}) is None


@pytest.mark.parametrize("label", ["--config", CONFIG_VARIABLE])
def test_a_file_that_was_named_has_to_be_there(label: str) -> None:
    typed = "/nowhere/x" if label == "--config" else None
    with pytest.raises(OptionError, match=f"{label} /nowhere/x: no such file"):
        config_path(typed, {CONFIG_VARIABLE: "/nowhere/x"})


def test_a_file_that_was_named_and_cannot_be_looked_for_is_told_with_the_options_name(
    tmp_path: Path,
) -> None:
    with pytest.raises(OptionError, match=f"--config {tmp_path}: a folder, and no file"):
        config_path(str(tmp_path), {})
    with pytest.raises(OptionError, match=f"{CONFIG_VARIABLE} x+: "):
        config_path(None, {CONFIG_VARIABLE: "x" * 300})  # longer than any name


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind in TEXTS])
def test_no_text_of_a_file_has_a_null_character(name: str, tmp_path: Path) -> None:
    value = r'"a\u0000b"'
    path = write(tmp_path, f"[serve]\n{name} = {f'[{value}]' if KINDS[name] == 'list' else value}")
    with pytest.raises(OptionError, match=rf"config\.toml: serve\.{name} .* null character"):
        read_config(path, COMMANDS)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("KEEPWARM_PROT", "KEEPWARM_PORT"),
        ("KEEPWARM_MAX_CONTEXT", "KEEPWARM_MAX_CONTEXT_TOKENS"),
        ("KEEPWARM_KV_CACHE_MB", "KEEPWARM_KV_CACHE_MIB"),
        ("KEEPWARM_SERVE_PORT", "KEEPWARM_PORT"),
        ("KEEPWARM_CHAT_URL", "KEEPWARM_URL"),
        ("KEEPWARM_BASE_URL", "KEEPWARM_URL"),
        ("KEEPWARM_KEY", "KEEPWARM_API_KEY"),
        ("KEEPWARM_DEMO_KEY", "KEEPWARM_DEMO_API_KEY"),
        ("KEEPWARM_CONFIGURATION", "KEEPWARM_CONFIG"),
        ("KEEPWARM_KERNEL", "KEEPWARM_KERNELS"),
        ("KEEPWARM_port", "KEEPWARM_PORT"),
        ("KEEPWARM_FUZZ_CASES", None),
        ("KEEPWARM_", None),
    ],
)
def test_a_variable_that_nothing_reads_is_told_with_the_nearest_name(
    name: str, near: str | None
) -> None:
    (line,) = stray_variables({name: "1", "PATH": "/bin"}, VARIABLES)
    assert line.startswith(f"the environment variable {name} is unknown and has no effect")
    assert line.endswith("no effect" if near is None else f"; is {near} meant?")


@pytest.mark.parametrize("name", OTHER_VARIABLES)
def test_a_value_without_effect_is_told_with_those_that_have_one(name: str) -> None:
    (line,) = stray_variables({name: "yes"}, VARIABLES)
    assert line.startswith(f"{name} is 'yes', not ")
    assert line.endswith(", and has no effect")
    for value in OTHER_VARIABLES[name]:
        assert stray_variables({name: value}, VARIABLES) == []


def test_what_some_command_reads_is_no_stray_and_meant_for_no_client() -> None:
    known = {*VARIABLES, CONFIG_VARIABLE, *OTHER_VARIABLES}
    allowed = {name: values[-1] for name, values in OTHER_VARIABLES.items()}
    assert stray_variables(dict.fromkeys(known, "1") | allowed, VARIABLES) == []
    assert [name for name in known if meant_by(name)] == []
