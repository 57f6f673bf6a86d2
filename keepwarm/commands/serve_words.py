"""Options of ``keepwarm serve`` as words behind another command's own: checked before a server is
started with them anywhere.

Always true: words that are refused here would have a server refused that is started with them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from keepwarm.commands.registry import SETTINGS
from sessions.command.options import read_serve_options
from sessions.command.settings import OptionError, config_path, read_config, resolve

_GIVEN = ("journal", "cluster", "advertise", "cluster_slot", "host", "port", "disk_kv_folder")
"""What each server of a cluster is given."""
SPARE_S = 15.0
"""A server needs so long to end, beside the times that it is given."""


def read_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words, if they are options of serve that a server may be given by hand.

    Raises:
        OptionError: they are not.
    """
    for name in _GIVEN:
        flag = "--" + name.replace("_", "-")
        if any(word == flag or word.startswith(flag + "=") for word in words):
            raise OptionError(f"{flag} is given to each server, and cannot stand behind --")
    return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The part of a server's options that whoever starts it has to know."""

    drain_s: float
    """How long it may take to end."""
    reloads: bool
    """SIGHUP has it read its tenants file again; without one it would end."""


def facts_of(
    words: Sequence[str], cluster: str, journal: str, host: str, kv_root: Path | None
) -> ServerFacts:
    """Check the options of a server that is started with these words.

    Raises:
        OptionError, click.UsageError: a server with them would be refused.
    """
    from keepwarm.commands.serve import COMMAND

    given = {"journal": journal, "cluster": cluster, "advertise": host, "host": host}
    if kv_root is not None:
        given["disk_kv_folder"] = str(kv_root)
    context = COMMAND.make_context("serve", list(words), resilient_parsing=False)
    typed = {
        name: value
        for name, value in context.params.items()
        if name != "config" and value is not None and value != ()
    }
    file = read_config(config_path(context.params["config"], os.environ), SETTINGS)
    values = resolve(
        "serve", SETTINGS["serve"], typed=typed | given, environment=os.environ, file=file
    )
    options = read_serve_options(values, os.environ)
    assert options.cluster is not None
    wait_s = options.drain_s + options.cluster.notice_s + SPARE_S
    return ServerFacts(drain_s=wait_s, reloads=options.tenants_file is not None)


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of serve that a server elsewhere gets as well."""
    known = {setting.variable for setting in SETTINGS["serve"]} | {"KEEPWARM_CONFIG"}
    kept = ("KEEPWARM_KERNELS", "KEEPWARM_NATIVE", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
    return {name: value for name, value in environment.items() if name in known or name in kept}
