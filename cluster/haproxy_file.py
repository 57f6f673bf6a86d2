"""The configuration file of a cluster's HAProxy, and which of its lines are there for a reason that
is not seen in them.

Always true: members come and go over the runtime socket alone; the file does not change with them,
and HAProxy is never reloaded.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sessions.journal.members import MOST_SLOTS
from sessions.journal.records import SERVER_DIED

BACKEND, FRONTEND = "replicas", "clients"
NUM_SLOTS = MOST_SLOTS
MAX_KEYS = 1 << 20
"""Sessions whose home is remembered; beyond that the one not seen for longest is forgotten."""
KEEP_KEYS = "2h"

_KEY = (
    "http-request set-var(txn.s) req.hdr(x-session-id)",
    "http-request set-var(txn.s) req.hdr(session-id) if !{ var(txn.s) -m found }",
    "http-request set-var(txn.s) url_param(session),url_dec if !{ var(txn.s) -m found }",
    # Each credential as a hash of its own: no text of one can stand for a part of another's.
    "http-request set-var(txn.a) req.hdr(authorization),sha1,hex",
    "http-request set-var(txn.a) req.hdr(x-api-key),sha1,hex if !{ var(txn.a) -m found }",
    # Of a page's WebSocket, which has its key among the sub-protocols, whole: not its last word.
    "http-request set-var(txn.a) req.fhdr(sec-websocket-protocol),sha1,hex "
    "if !{ var(txn.a) -m found }",
    "http-request set-var(txn.key) str(k),concat(|,txn.a),concat(|,txn.s),sha1,hex "
    "if { var(txn.s) -m found }",
)
CHECK = "http-check send meth GET uri /health ver HTTP/1.1 hdr Host 127.0.0.1"
"""HTTP/1.1, since our server does not speak 1.0; the name, since one without keys answers to no
other; not /readyz, which fails where sockets have to stay: while an engine starts, in a drain."""
SERVERS = (
    "default-server check inter 500ms fastinter 200ms fall 2 rise 1 weight 100 init-addr none "
    "on-marked-down shutdown-sessions"
)
"""``shutdown-sessions``: a process that is stopped, not dead, keeps its sockets open, and whoever
waits at one would wait until it is tired of that."""

_NONE_FREE = "The server is overloaded: no server of the cluster takes requests just now."
_GONE = "The server that had the request is gone: what it began has failed. Send it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where clients come in, and the socket for commands."""

    bind: str
    """The address on which HAProxy listens, ``HOST:PORT``."""
    certificate: Path | None = None
    """Chain and key in one PEM file; None: no TLS."""
    commands: Path


def text(listening: Listening) -> str:
    """The whole text of HAProxy's configuration."""
    tls = ""
    if listening.certificate is not None:
        tls = f" ssl crt {_quoted(listening.certificate)} alpn http/1.1"
    return "\n".join(
        [
            "# Written by 'keepwarm cluster balance'.",
            "global",
            f"    stats socket {_quoted(listening.commands)} mode 600 level admin",
            "    stats timeout 10s",
            "defaults",
            *_indented(_defaults()),
            f"frontend {FRONTEND}",
            *_indented([f"bind {listening.bind}{tls}", *_KEY, f"default_backend {BACKEND}"]),
            f"backend {BACKEND}",
            *_indented(_backend()),
            "",
        ]
    )


def _defaults() -> Iterable[str]:
    return (
        "mode http",
        "option http-no-delay",
        "option forwardfor",
        "timeout connect 2s",
        "timeout client 1h",
        "timeout server 1h",
        "timeout http-request 30s",
        "timeout queue 5s",
        # A socket may say nothing for as long as an agent's tools run.
        "timeout tunnel 2h",
        "timeout check 1500ms",
        _answer(503, _NONE_FREE, "server_is_overloaded", " hdr retry-after 1"),
        _answer(502, _GONE, SERVER_DIED),
        _answer(504, _GONE, SERVER_DIED),
    )


def _answer(status: int, message: str, code: str, headers: str = "") -> str:
    """A line that has clients told in the API's words what HAProxy would say in a page."""
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    body = json.dumps({"error": error})
    return f"http-error status {status} content-type application/json string '{body}'{headers}"


def _backend() -> Iterable[str]:
    return (
        f"stick-table type string len 40 size {MAX_KEYS} expire {KEEP_KEYS}",
        "stick on var(txn.key)",
        "balance leastconn",
        # A connection to a replica is one client's: its address is that of the first request.
        "http-reuse never",
        "option httpchk",
        CHECK,
        "option redispatch 1",
        "retries 3",
        SERVERS,
        f"server-template r 1-{NUM_SLOTS} 127.0.0.1:1 disabled",
    )


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _quoted(path: Path) -> str:
    """A path as one word of the file."""
    return "".join(f"\\{each}" if each in " \\\"'#$" else each for each in str(path))
