"""The options of every command together, so that a configuration file can be checked whole."""

import os
from urllib.parse import urlsplit

import click

from keepwarm.commands.chat_settings import CHAT_SETTINGS
from keepwarm.commands.cluster_settings import CLUSTER_SETTINGS
from keepwarm.commands.parameters import Given
from keepwarm.demo.settings import DEMO_SETTINGS
from sessions.command.serve_settings import SERVE_SETTINGS
from sessions.command.settings import (
    OptionError,
    Setting,
    Values,
    config_path,
    read_config,
    resolve,
    stray_variables,
)
from tools_api.sdk.environment import check_key, with_path

SCHEMES = ("http", "https", "ws", "wss")
SETTINGS: dict[str, tuple[Setting, ...]] = {
    "serve": SERVE_SETTINGS,
    "chat": CHAT_SETTINGS,
    "demo": DEMO_SETTINGS,
    "cluster": CLUSTER_SETTINGS,
}
"""The tables of a configuration file, by command."""


def strays() -> list[str]:
    """A line for each variable of the environment that no command reads, though named so."""
    known = [setting.variable for settings in SETTINGS.values() for setting in settings]
    return stray_variables(os.environ, known)


def warn_of_strays() -> None:
    """Tell them on standard error, for commands that write no log."""
    for line in strays():
        click.echo(f"keepwarm: warning: {line}", err=True)


def values_of(command: str, given: Given) -> Values:
    """The options of ``command``, from all places that may give them.

    Raises:
        OptionError: one of them cannot be used, or the file cannot.
    """
    file = read_config(config_path(given.config, os.environ), SETTINGS)
    return resolve(command, SETTINGS[command], typed=given.typed, environment=os.environ, file=file)


def base_url(values: Values) -> str:
    """The server's address with its path, which may be left out.

    Raises:
        OptionError: it is no address.
    """
    url: str = values["url"]
    try:
        parts = urlsplit(url)
        whole = parts.scheme in SCHEMES and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        whole = None
    if not whole:
        raise OptionError(f"{values.label('url')} {url!r} is not of the form http://host:port")
    return with_path(url)


def key_of(values: Values) -> str | None:
    """The key to send; None: none was given.

    Raises:
        OptionError: it is none that a server can have.
    """
    key: str | None = values["api_key"]
    try:
        check_key(key, values.label("api_key"))
    except ValueError as error:
        raise OptionError(str(error)) from error
    return key
