"""Options of a server in a cluster, and what is wrong with them in a line."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sessions.command.cluster_options import join
from sessions.command.options import ServeOptions, read_serve_options
from sessions.command.serve_settings import SERVE_SETTINGS
from sessions.command.settings import OptionError, resolve
from sessions.journal.members import MOST_SLOTS, NO_SLOT, MemberState
from sessions.journal.sqlite import SqliteJournal

URL = "postgresql:///x"


def options(**typed: Any) -> ServeOptions:
    values = resolve("serve", SERVE_SETTINGS, typed=typed, environment={}, file=None)
    return read_serve_options(values, {"HOME": "/nonexistent"})


def test_without_a_cluster_there_is_none() -> None:
    assert options().cluster is None
    assert options().forwarded_by == ()


@pytest.mark.parametrize(
    ("advertise", "place"),
    [
        ("127.0.0.1", ("127.0.0.1", 0)),
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("localhost:0", ("127.0.0.1", 0)),
        ("::1", ("::1", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_an_address_is_advertised_with_or_without_its_port(
    advertise: str, place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = socket.getaddrinfo

    def lookup(host: str, *rest: Any, **more: Any) -> Any:
        return known("127.0.0.1" if host == "localhost" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    found = options(cluster="c", advertise=advertise, journal=URL).cluster
    assert found is not None
    assert (found.host, found.port) == place


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ({"cluster": "c", "journal": URL}, "needs --advertise HOST"),
        ({"cluster": "c", "advertise": "127.0.0.1"}, "share a journal in PostgreSQL"),
        ({"cluster": "c", "advertise": "127.0.0.1", "journal": "x"}, "share a journal"),
        ({"advertise": "127.0.0.1"}, "--advertise is for a server with --cluster"),
        ({"cluster": "a/b", "advertise": "127.0.0.1", "journal": URL}, "is not 1 to 64 of"),
        ({"cluster": "c", "advertise": "0.0.0.0", "journal": URL}, "no address at which others"),
        ({"cluster": "c", "advertise": "127.0.0.1:x", "journal": URL}, "not of the form HOST"),
        ({"cluster": "c", "advertise": ":80", "journal": URL}, "not of the form HOST"),
        ({"forwarded_by": ("10.0.0.1/8",)}, "'10.0.0.1/8' is no network"),
        ({"forwarded_by": ("lan",)}, "'lan' is no network"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(typed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint) as told:
        options(**typed)
    assert "\n" not in str(told.value)


async def test_a_server_joins_with_the_port_that_it_listens_on_and_is_refused_by_name(
    tmp_path: Path,
) -> None:
    given = options(cluster="c", advertise="127.0.0.1", journal=URL).cluster
    assert given is not None
    one, two = (
        SqliteJournal(tmp_path / "j", fingerprint=b"f", owner=name, shared=True) for name in "ab"
    )
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        standing = await join(given, one, identity="m", bound=bound)
        assert standing is not None
        assert standing.presence.address == f"127.0.0.1:{port}"
        assert standing.presence.state is MemberState.STARTING
        with pytest.raises(OptionError, match=r"serves m .* this server n"):
            await join(replace(given, port=4), two, identity="n", bound=bound)
        await standing.close()
        assert await join(None, one, identity="m", bound=bound) is None
        assert await join(given, None, identity="m", bound=bound) is None
    one.close()
    two.close()


def test_a_slot_may_be_any_that_a_balancer_has() -> None:
    (slot,) = (each for each in SERVE_SETTINGS if each.name == "cluster_slot")
    assert (slot.default, slot.bounds) == (NO_SLOT, (NO_SLOT, MOST_SLOTS))
