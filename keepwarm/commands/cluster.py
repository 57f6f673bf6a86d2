"""``keepwarm cluster``: several servers as one.

Loads what it needs when it runs: a server without a cluster has neither HAProxy nor psycopg nor
Ray.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from keepwarm.commands.cluster_settings import (
    BALANCE_SETTINGS,
    NAME_SETTINGS,
    SCALE_SETTINGS,
    STATUS_SETTINGS,
    UP_SETTINGS,
)
from keepwarm.commands.parameters import Given, settings_command
from keepwarm.commands.registry import values_of, warn_of_strays
from keepwarm.commands.serve_words import facts_of, forwarded, read_words
from sessions.command.settings import OptionError, Values, fault_of_file
from sessions.journal.errors import JournalError
from sessions.journal.places import in_postgres, state_folder

BALANCE = """Put HAProxy before the servers of a cluster ('keepwarm serve --cluster NAME').

It needs HAProxy 2.4 or newer and the extra 'postgres'. Each session goes to one server as long as
that lives, new ones to the server with the fewest sockets; servers come and go without a reload.
One balance of a cluster is at work at a time, a second one waits. Killed and started again it cuts
nobody; told to stop it ends HAProxy too."""
UP = """Start the servers of a cluster on Ray Serve, and return when all are ready.

What stands behind '--' are options of 'keepwarm serve'; --journal, --cluster, --advertise, --host,
--port and the KV folder are given to each server. Ray replaces servers that die. Where the cluster
is up already, each server is replaced, one after the other. It needs the extra 'cluster';
'keepwarm cluster balance' is to run beside it."""
SCALE = "Have COUNT servers, or as many as are wanted from COUNT to --max-replicas."
DRAIN = "Have one server drain and be replaced: MEMBER is its address, its slot or its name."
RELOAD = "Have every server read its tenants file again."
DOWN = "Have every server drain and end, and Ray where it is the cluster's own."
STATUS = (
    "Show the cluster's servers: state, slot, sockets, sessions, KV, hit ratio, turns, version."
)
_EXTRAS = {"psycopg": "postgres", "ray": "cluster"}


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """An extra that is missing, and what a person can mend, in one line."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        told = f"this command needs the extra '{extra}': pip install 'keepwarm[{extra}]'"
        raise click.ClickException(told) from error
    except JournalError as error:
        raise click.ClickException(str(error)) from error


def balance(given: Given) -> int:
    """Balance until told to stop; returns the exit status."""
    warn_of_strays()
    values = values_of("cluster", given)
    with _said():
        from cluster.balance import BalanceOptions
        from cluster.balance import run as run_balance
        from cluster.haproxy import HaproxyError

        certificate: Path | None = values["tls_certificate"]
        name = _name(values)
        if certificate is not None and (fault := fault_of_file(certificate)):
            raise OptionError(f"{values.label('tls_certificate')} {certificate}: {fault}")
        options = BalanceOptions(
            journal=_journal(values),
            cluster=name,
            bind=_bind(values),
            certificate=certificate,
            haproxy=values["haproxy"],
            targets=values["file_sd"],
            folder=state_folder(os.environ),
            log_level=values["log_level"],
            log_format=values["log_format"],
        )
        try:
            return run_balance(options, click.echo)
        except HaproxyError as error:
            raise click.ClickException(str(error)) from error


def up(given: Given) -> int:
    """Start the servers; returns the exit status."""
    warn_of_strays()
    values = values_of("cluster", given)
    words = read_words(given.arguments["words"])
    with _said():
        from cluster.ray_head import RayHeadError, private_address
        from cluster.up import Deployed, need_ray

        need_ray()
        name, journal, root = _name(values), _journal(values), values["kv_folder"]
        most = values["max_replicas"] or values["replicas"]
        if most < values["replicas"]:
            raise OptionError(f"{values.label('max_replicas')} is less than --replicas")
        try:
            host = private_address(values["node_host"])
        except RayHeadError as error:
            raise OptionError(f"{values.label('node_host')} {error}") from error
        facts = facts_of(words, name, journal, host, root)
        plan = {
            "cluster": name,
            "journal": journal,
            "options": list(words),
            "folder": str(_folder(name)),
            "kv_root": None if root is None else str(Path(os.path.expanduser(root)).resolve()),
            "environment": forwarded(os.environ),
        }
        wanted = Deployed(
            plan=plan,
            drain_s=facts.drain_s,
            reloads_tenants=facts.reloads,
            replicas=values["replicas"],
            most=most,
            turns_per_replica=values["turns_per_replica"],
            cpus=values["cpus"],
            gpus=values["gpus"],
            ray=values["ray"],
        )
        return _told(name, lambda found: found.up(wanted, host, click.echo))


def scale(given: Given) -> int:
    """Change how many there are to be; returns the exit status."""
    values, count = values_of("cluster", given), given.arguments["count"]
    most = values["max_replicas"] or count
    if most < count:
        raise OptionError(f"{values.label('max_replicas')} is less than {count}")
    return _told(_name(values), lambda found: found.scale(count, most))


def drain(given: Given) -> int:
    """Have one server replaced; returns the exit status."""
    member: str = given.arguments["member"]
    name = _name(values_of("cluster", given))
    return _told(name, lambda found: click.echo(f"{found.drain(member)} drains"))


def reload(given: Given) -> int:
    """Have the tenants file read again; returns the exit status."""
    return _told(_name(values_of("cluster", given)), lambda found: found.reload())


def down(given: Given) -> int:
    """End all servers; returns the exit status."""
    return _told(_name(values_of("cluster", given)), lambda found: found.down(click.echo))


def status(given: Given) -> int:
    """Print the cluster's servers; returns the exit status."""
    values = values_of("cluster", given)
    with _said():
        from cluster.status import as_json, as_table, look

        found = look(_journal(values), _name(values))
        click.echo(as_json(found) if given.arguments["as_json"] else as_table(found))
        return 0


def _told(name: str, act: Callable[[Any], None]) -> int:
    """Do it to the cluster's deployment; returns the exit status."""
    with _said():
        from cluster.up import Deployment, UpError, need_ray

        need_ray()
        try:
            act(Deployment(_folder(name), name))
        except UpError as error:
            raise click.ClickException(str(error)) from error
    return 0


def _folder(name: str) -> Path:
    return state_folder(os.environ) / "cluster" / name


def _name(values: Values) -> str:
    from cluster.names import is_name

    name: str = values["cluster"] or ""
    if not is_name(name):
        raise OptionError(f"{values.label('cluster')} {name!r} is not 1 to 64 of A-Z a-z 0-9 _ . -")
    return name


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


_COUNT = click.Argument(["count"], type=click.IntRange(1, 256))
_WORDS = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVE OPTIONS]")
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="as JSON, with everything there is")
COMMAND = click.Group(
    "cluster",
    help="Several servers that share a journal: start them, put HAProxy before them, look at them.",
    commands=[
        settings_command("balance", BALANCE_SETTINGS, balance, help=BALANCE),
        settings_command("up", UP_SETTINGS, up, help=UP, more=[_WORDS]),
        settings_command("scale", SCALE_SETTINGS, scale, help=SCALE, more=[_COUNT]),
        settings_command(
            "drain", NAME_SETTINGS, drain, help=DRAIN, more=[click.Argument(["member"])]
        ),
        settings_command("reload", NAME_SETTINGS, reload, help=RELOAD),
        settings_command("down", NAME_SETTINGS, down, help=DOWN),
        settings_command("status", STATUS_SETTINGS, status, help=STATUS, more=[_JSON]),
    ],
)
