"""``keepwarm cluster``: several servers as one.

Loads what it needs when it runs: a server without a cluster has neither HAProxy nor psycopg.
"""

import os
from pathlib import Path

import click

from keepwarm.commands.cluster_settings import CLUSTER_SETTINGS
from keepwarm.commands.parameters import Given, settings_command
from keepwarm.commands.registry import values_of, warn_of_strays
from sessions.command.settings import OptionError, Values
from sessions.journal.errors import JournalError
from sessions.journal.places import in_postgres, state_folder

HELP = """Put HAProxy before the servers of a cluster ('keepwarm serve --cluster NAME').

It needs HAProxy 2.4 or newer and the extra 'postgres'. Each session goes to one server as long as
that lives, new ones to the server with the fewest sockets; servers come and go without a reload.
One balance of a cluster is at work at a time, a second one waits. Killed and started again it cuts
nobody; told to stop it ends HAProxy too."""


def run(given: Given) -> int:
    """Balance until told to stop; returns the exit status."""
    warn_of_strays()
    values = values_of("cluster", given)
    try:
        from cluster.balance import BalanceOptions, is_name
        from cluster.balance import run as balance
        from cluster.haproxy import HaproxyError
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        told = "'keepwarm cluster' needs the extra 'postgres': pip install 'keepwarm[postgres]'"
        raise click.ClickException(told) from error
    if not is_name(values["cluster"] or ""):
        raise OptionError(
            f"{values.label('cluster')} {values['cluster'] or ''!r} is not 1 to 64 of "
            "A-Z a-z 0-9 _ . -"
        )
    certificate: Path | None = values["tls_certificate"]
    if certificate is not None and not certificate.is_file():
        raise OptionError(f"{values.label('tls_certificate')} {certificate}: no such file")
    options = BalanceOptions(
        journal=_journal(values),
        cluster=values["cluster"],
        bind=_bind(values),
        certificate=certificate,
        haproxy=values["haproxy"],
        folder=state_folder(os.environ),
        log_level=values["log_level"],
        log_format=values["log_format"],
    )
    try:
        return balance(options, click.echo)
    except (HaproxyError, JournalError) as error:
        raise click.ClickException(str(error)) from error


def _journal(values: Values) -> str:
    place: str | None = values["journal"]
    if place is None or not in_postgres(place):
        raise OptionError(f"{values.label('journal')}: a cluster's journal is postgresql://...")
    return place


def _bind(values: Values) -> str:
    text: str = values["bind"]
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or set(text) & set(" \t\n#,"):
        raise OptionError(f"{values.label('bind')} {text!r} is not of the form HOST:PORT")
    return text


COMMAND = click.Group(
    "cluster",
    help="Put HAProxy before several servers that share a journal.",
    commands=[settings_command("balance", CLUSTER_SETTINGS, run, help=HELP)],
)
