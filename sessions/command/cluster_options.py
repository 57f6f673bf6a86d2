"""A server's options as a member of a cluster, and joining it.

Always true: without ``--cluster`` there is no standing, and nothing here is done.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass

from sessions.command.journal_options import JournalOptions
from sessions.command.settings import OptionError, Values
from sessions.http.front_door import Network
from sessions.journal.errors import AddressTaken, ClusterRefused
from sessions.journal.journal import Journal
from sessions.journal.members import NO_SLOT, MemberState, Presence
from sessions.journal.places import in_postgres
from sessions.wire.standing import Standing
from tools_api.version import __version__

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """A server in a cluster, completely described."""

    name: str
    host: str
    """The address at which others reach the server."""
    port: int
    """The port at which others reach the server; 0: the one that it listens on."""
    notice_s: float
    slot: int = NO_SLOT
    """The slot of the balancer that it asks for."""


def read_cluster_options(values: Values, journal: JournalOptions) -> ClusterOptions | None:
    """Raises OptionError: options contradict each other, or one is not what it should be."""
    name, advertise = values["cluster"], values["advertise"]
    if name is None:
        if advertise is not None:
            raise OptionError(f"{values.label('advertise')} is for a server with --cluster")
        return None
    if not _NAME.fullmatch(name):
        raise OptionError(f"{values.label('cluster')} {name!r} is not 1 to 64 of A-Z a-z 0-9 _ . -")
    if journal.place is None or not in_postgres(journal.place):
        raise OptionError(
            f"{values.label('cluster')}: the servers of a cluster share a journal in PostgreSQL: "
            "--journal postgresql://..."
        )
    if advertise is None:
        raise OptionError(
            f"{values.label('cluster')} needs --advertise HOST[:PORT], where the balancer reaches "
            "this server"
        )
    host, port = _place(advertise, values.label("advertise"))
    return ClusterOptions(
        name=name,
        host=host,
        port=port,
        notice_s=values["drain_notice_s"],
        slot=values["cluster_slot"],
    )


def read_networks(values: Values) -> tuple[Network, ...]:
    """Raises OptionError: one is no network."""
    found: list[Network] = []
    for text in values["forwarded_by"]:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            label = values.label("forwarded_by")
            raise OptionError(f"{label} {text!r} is no network: {error}") from error
    return tuple(found)


def _place(text: str, label: str) -> tuple[str, int]:
    """Address and port; the port is 0 where there is none. Names are looked up: a balancer takes
    addresses alone."""
    host, separator, port = text.rpartition(":")
    if not separator or "]" in port or (text.count(":") > 1 and not text.startswith("[")):
        host, port = text, "0"
    if not port.isdecimal() or int(port) > 65535 or not host.strip("[]"):
        raise OptionError(f"{label} {text!r} is not of the form HOST or HOST:PORT")
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OptionError(f"{label} {text!r}: there is no such host: {error.strerror}") from error
    address = str(found[0][4][0])
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        raise OptionError(f"{label} {text!r} is no address at which others reach this server")
    return address, int(port)


async def join(
    options: ClusterOptions | None,
    journal: Journal | None,
    *,
    identity: str,
    bound: socket.socket,
) -> Standing | None:
    """Become a member of the cluster; None: there is none.

    Args:
        identity: model, tokenizer, chat format and adapters.
        bound: where the server will listen.

    Raises:
        OptionError: the cluster serves something else, or another one is at this address.
    """
    if options is None or journal is None or journal.ownership is None:
        return None
    port = options.port or bound.getsockname()[1]
    address = f"[{options.host}]:{port}" if ":" in options.host else f"{options.host}:{port}"
    presence = Presence(
        cluster=options.name,
        address=address,
        identity=identity,
        state=MemberState.STARTING,
        version=__version__,
        wanted_slot=options.slot,
    )
    standing = Standing(presence, notice_s=options.notice_s)
    try:
        await standing.join(journal.ownership)
    except (ClusterRefused, AddressTaken) as error:
        raise OptionError(str(error)) from error
    return standing
