"""``keepwarm config show``: every option with its value and where that comes from.

What it prints is a configuration file: what was not said stands in comments.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import click

from keepwarm.commands.parameters import Given, settings_command
from keepwarm.commands.registry import SETTINGS, warn_of_strays
from sessions.command.settings import (
    CONFIG_VARIABLE,
    ConfigFile,
    Setting,
    Value,
    config_path,
    read_config,
    resolve,
)

HELP = f"""Show every option and where its value comes from.

What is typed goes before the environment (KEEPWARM_PORT for --port of serve, KEEPWARM_DEMO_URL
for --url of demo), that before the configuration file, that before the default. The file is
--config, else {CONFIG_VARIABLE}, else keepwarm/config.toml in $XDG_CONFIG_HOME or ~/.config; it is
TOML, with a table for each command:

    [serve]
    port = 8081
"""


def run(given: Given) -> int:
    """Print the options of one command, or of all; returns the exit status."""
    warn_of_strays()
    file = read_config(config_path(given.config, os.environ), SETTINGS)
    only = given.arguments["command"]
    click.echo(f"# configuration file: {'none' if file is None else file.path}")
    for name in SETTINGS if only is None else [only]:
        click.echo(f"\n[{name}]")
        for line in lines(name, os.environ, file):
            click.echo(line)
    return 0


def lines(command: str, environment: Mapping[str, str], file: ConfigFile | None) -> Iterator[str]:
    """The options of ``command`` as lines of a configuration file.

    Raises:
        OptionError: a value in the environment is not what its option may be.
    """
    settings = SETTINGS[command]
    values = resolve(command, settings, typed={}, environment=environment, file=file)
    for setting in settings:
        yield _line(setting, values.found(setting.name))


def _line(setting: Setting, value: Value) -> str:
    where = {
        "environment": f"from {setting.variable}",
        "file": "from the file",
    }.get(value.origin, "default")
    hidden = setting.secret and value.value
    shown = "..." if hidden else _toml(value.value)
    mark = "# " if hidden or value.origin == "default" else ""
    return f"{mark}{setting.name} = {shown}  # {where}"


def _toml(value: Any) -> str:
    """A value as TOML writes it; what has none is left empty for the reader to fill."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


COMMAND = click.Group(
    "config",
    help=HELP,
    commands=[
        settings_command(
            "show",
            (),
            run,
            help=HELP,
            more=[click.Argument(["command"], required=False, type=click.Choice(list(SETTINGS)))],
        )
    ],
)
