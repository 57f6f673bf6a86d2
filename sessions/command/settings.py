"""Where the options of a command come from: what was typed, the environment, a file, defaults.

A ``Setting`` says of one option what it may be; ``resolve`` finds its value. What is typed goes
before ``KEEPWARM_*``, that before the configuration file, that before the default. Knows no
command; the words typed come parsed as far as ``--name text``.

Always true: a value is checked in the same way wherever it comes from, and a complaint names
the place as its author knows it: the flag, the variable, or the line of the file.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tools_api.home_folder import home_folder
from tools_api.sdk.environment import meant_by

CONFIG_VARIABLE = "KEEPWARM_CONFIG"
OTHER_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "KEEPWARM_KERNELS": ("", "torch", "triton"),
    "KEEPWARM_NATIVE": ("", "0", "1"),
}
"""Read where the kernels are chosen, and no option of any command: what they may say."""
_PREFIX = "KEEPWARM_"
Kind = Literal["text", "whole", "number", "path", "list", "switch"]
Origin = Literal["typed", "environment", "file", "default"]

_KINDS: dict[Kind, str] = {
    "text": "text",
    "whole": "a whole number",
    "number": "a number",
    "path": "a path",
    "list": "a list of texts",
    "switch": "true or false",
}
_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_MAX_CONFIG_BYTES = 1024 * 1024


class OptionError(Exception):
    """An option cannot be used as given; the message is one line for the person who gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One option of a command."""

    name: str
    """The name in the file: ``kv_cache_mib``; ``--kv-cache-mib`` and ``KEEPWARM_KV_CACHE_MIB``."""
    help: str
    kind: Kind = "text"
    default: Any = None
    """The default, for people; None: ``help`` says it."""
    choices: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    """The least and the most that a number may be."""
    metavar: str = ""
    secret: bool = False
    """Whether its value must not be shown."""
    group: str = ""
    """Heading in the help; "" for the command's own."""
    prefix: str = ""
    """The prefix of the variable's name, of commands other than ``serve``: ``CHAT_``."""
    tuning: bool = False
    """Taken like any other, and shown by ``config show`` alone: no help names it."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"{_PREFIX}{self.prefix}{self.name.upper()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An option's value, and where it comes from."""

    value: Any
    origin: Origin
    label: str
    """The place in words, as it may begin a complaint: ``--port``, ``KEEPWARM_PORT``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A configuration file that has been read: its tables, by command."""

    path: Path
    tables: Mapping[str, Mapping[str, Any]]


class Values(Mapping[str, Any]):
    """The options of one command, by name."""

    def __init__(self, found: Mapping[str, Value]) -> None:
        self._found = dict(found)

    def __getitem__(self, name: str) -> Any:
        return self._found[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def found(self, name: str) -> Value:
        """The value with its origin."""
        return self._found[name]

    def label(self, name: str) -> str:
        """How whoever gave the option knows it."""
        return self._found[name].label


# Paths


def fault_of_file(path: Path) -> str | None:
    """Why a path names no file that can be read, in words that go behind it; None: it does."""
    try:
        if path.is_dir():
            return "a folder, and no file"
        if path.is_file():
            return None
        return "no regular file" if path.exists() else "no such file"
    except OSError as error:
        return error.strerror


def fault_of_folder(path: Path) -> str | None:
    """Why a path names no folder, in words that go behind it; None: it does."""
    try:
        return None if path.is_dir() else "no folder"
    except OSError as error:
        return error.strerror


# The file


def config_path(typed: str | None, environment: Mapping[str, str]) -> Path | None:
    """The configuration file: as typed, ``KEEPWARM_CONFIG``, or the user's own if there is one.
    An empty name is none.

    Raises:
        OptionError: a file that was named is not there, or one cannot be looked for.
    """
    for label, text in (("--config", typed), (CONFIG_VARIABLE, environment.get(CONFIG_VARIABLE))):
        if text is not None:
            path = Path(os.path.expanduser(text))
            if text and (fault := fault_of_file(path)):
                raise OptionError(f"{label} {text}: {fault}")
            return path if text else None
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(
        environment.get("HOME") or home_folder(), ".config"
    )
    own = Path(home) / "keepwarm" / "config.toml"
    return own if own.is_file() else None


def read_config(path: Path | None, known: Mapping[str, Sequence[Setting]]) -> ConfigFile | None:
    """Read a file with a table for each command.

    Args:
        known: the commands and their options; names may have hyphens or underscores.

    Raises:
        OptionError: it cannot be read, or has a table, a key or a value that is not known.
    """
    if path is None:
        return None
    tables: dict[str, Mapping[str, Any]] = {}
    for command, table in _load(path).items():
        if command not in known or not isinstance(table, dict):
            raise OptionError(f"{path}: {_unknown(f'[{command}]', command, known)}")
        settings = {setting.name: setting for setting in known[command]}
        tables[command] = entries = {}
        for key, value in table.items():
            name = key.replace("-", "_")
            if name not in settings:
                raise OptionError(f"{path}: {_unknown(f'{command}.{key}', name, settings)}")
            entries[name] = _from_toml(settings[name], value, f"{path}: {command}.{key}")
    return ConfigFile(path=path, tables=tables)


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_CONFIG_BYTES + 1)
        if len(content) > _MAX_CONFIG_BYTES:
            raise OptionError(f"{path}: longer than {_MAX_CONFIG_BYTES} bytes")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise OptionError(f"{path}: cannot read it: {error.strerror}") from error
    except UnicodeDecodeError:
        raise OptionError(f"{path}: not TOML: not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path}: not TOML: {error}") from None


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    advice = f"; is {near[0]} meant?" if near else f"; known: {', '.join(sorted(known))}"
    return f"{what} is unknown{advice}"


def _from_toml(setting: Setting, value: Any, label: str) -> Any:
    """A value of the file, as strict as TOML's own types are."""
    fits = {
        "text": isinstance(value, str),
        "path": isinstance(value, str),
        "whole": type(value) is int,
        "number": type(value) in (int, float),
        "switch": type(value) is bool,
        "list": isinstance(value, list) and all(isinstance(part, str) for part in value),
    }
    if not fits[setting.kind]:
        raise OptionError(f"{label} is {value!r}, not {_KINDS[setting.kind]}")
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(text, str) and "\0" in text for text in texts):  # which no path has
        raise OptionError(f"{label} {value!r} has a null character")
    return checked(setting, value, label)


# The environment


def stray_variables(environment: Mapping[str, str], known: Iterable[str]) -> list[str]:
    """A line for each variable that is named like ours and that nothing reads, with the nearest
    name that something does. It is no error: tests and other programs may have theirs."""
    names = sorted({*known, CONFIG_VARIABLE, *OTHER_VARIABLES})
    told = []
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name not in names:
            near = _nearest(name, names)
            advice = "" if near is None else f"; is {near} meant?"
            told.append(f"the environment variable {name} is unknown and has no effect{advice}")
    for name, may_be in OTHER_VARIABLES.items():
        if environment.get(name, "") not in may_be:
            wanted = " or ".join(filter(None, may_be))
            told.append(f"{name} is {environment[name]!r}, not {wanted}, and has no effect")
    return told


def _nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that was probably meant: misspelt, named as a client would name it, or
    with the name of a command in it that it does not have."""
    by_word = {each.removeprefix(_PREFIX): each for each in names}
    word = name.removeprefix(_PREFIX).upper()
    if word.partition("_")[2] in by_word:
        return by_word[word.partition("_")[2]]
    for cutoff in (0.7, 0.6):
        if near := difflib.get_close_matches(word, list(by_word), n=1, cutoff=cutoff):
            return by_word[near[0]]
        if meant := meant_by(name):
            return meant
    return None


# One value


def parsed(setting: Setting, text: str | Sequence[str], label: str) -> Any:
    """Read a value that was typed, or stands in the environment.

    Raises:
        OptionError: it is not what the option may be.
    """
    if not isinstance(text, str):
        return checked(setting, list(text), label)
    if setting.kind == "list":
        return checked(setting, [part.strip() for part in text.split(",") if part.strip()], label)
    value: Any = text
    try:
        if setting.kind == "whole":
            value = int(text)
        elif setting.kind == "number":
            value = float(text)
        elif setting.kind == "switch":
            value = _SWITCH[text.lower()]
    except (ValueError, KeyError):
        raise OptionError(f"{label} {text!r} is not {_KINDS[setting.kind]}") from None
    return checked(setting, value, label)


def checked(setting: Setting, value: Any, label: str) -> Any:
    """``value`` if it is within its choices and bounds; paths become ``Path``.

    Raises:
        OptionError: it is not.
    """
    if setting.choices and value not in setting.choices:
        raise OptionError(f"{label} {value!r} is not one of {', '.join(setting.choices)}")
    if setting.bounds is not None and value is not None:
        low, high = setting.bounds
        if not low <= value <= high:  # which "not a number" is not either
            raise OptionError(f"{label} {value} is not in {low}..{high}")
    if setting.kind == "path" and value is not None:
        return Path(os.path.expanduser(value))
    return value


# All of them


def resolve(
    command: str,
    settings: Iterable[Setting],
    *,
    typed: Mapping[str, Any],
    environment: Mapping[str, str],
    file: ConfigFile | None = None,
) -> Values:
    """The options of ``command``.

    Args:
        typed: what stands on the command line, by name; an option that does not is missing.

    Raises:
        OptionError: a value is not what its option may be.
    """
    table = {} if file is None else file.tables.get(command, {})
    found = {}
    for setting in settings:
        name, text = setting.name, environment.get(setting.variable)
        if name in typed:
            value = parsed(setting, typed[name], setting.flag)
            found[name] = Value(value=value, origin="typed", label=setting.flag)
        elif text is not None:
            value = parsed(setting, text, setting.variable)
            found[name] = Value(value=value, origin="environment", label=setting.variable)
        elif name in table:
            assert file is not None
            label = f"{file.path}: {command}.{name}"
            found[name] = Value(value=table[name], origin="file", label=label)
        else:
            value = Path(setting.default) if setting.kind == "path" and setting.default else None
            default = setting.default if value is None else value
            found[name] = Value(value=default, origin="default", label=setting.flag)
    return Values(found)
