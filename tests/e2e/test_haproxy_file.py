"""Each line of HAProxy's file that a trap taught: a scene that goes well with it, and not without.

The scenes are played on a real HAProxy before servers of a few lines, and the checks before a real
server of ours too.
"""

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from cluster.haproxy import Haproxy, HaproxyError, find_program
from cluster.haproxy_file import BACKEND, Listening, text
from cluster.membership import Seen, Slot, plan
from keepwarm.demo.child_server import ChildServer
from keepwarm.top.feed import Feed, FeedError
from sessions.journal.members import Member, MemberState, Presence
from tests.support.upstream import Upstream, read_head

try:
    PROGRAM = find_program(None)
except HaproxyError:
    PROGRAM = ""
pytestmark = pytest.mark.skipif(
    not PROGRAM, reason="HAProxy is not installed: apt-get install haproxy"
)

Spoil = Callable[[str], str]
PATIENCE_S = 10.0
CUT_S = 2.0
"""A socket that is going to be cut is cut within that."""


def whole(text_: str) -> str:
    return text_


def without(words: str) -> Spoil:
    return instead(words, "")


def instead(words: str, others: str) -> Spoil:
    def spoilt(text_: str) -> str:
        assert words in text_
        return text_.replace(words, others)

    return spoilt


class Front:
    """An HAProxy whose slots a test fills."""

    def __init__(self, haproxy: Haproxy, port: int) -> None:
        self.haproxy, self.port = haproxy, port

    def slots(self) -> list[Slot]:
        return self.haproxy.socket.slots(BACKEND)

    def do(self, *seen: Seen, but: str = "nothing") -> None:
        """What the balancer does, ``but`` for commands with that in them."""
        for step in plan(BACKEND, seen, self.slots()).steps:
            for command in step.commands:
                if but not in command:
                    self.haproxy.socket.do(command)

    def ask(self, path: str = "/v1/responses", *fields: str) -> str:
        """Who answers a request on a connection of its own; its status where nobody does."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as client:
            return ask_on(client, path, *fields)

    def open(self, *fields: str) -> tuple[socket.socket, str]:
        """A socket that stays open, and who is at its other end."""
        client = socket.create_connection(("127.0.0.1", self.port), 5)
        send(client, "/v1/responses", "Upgrade: test", "Connection: Upgrade", *fields)
        head = read_head(client)
        assert " 101 " in head
        return client, head.lower().partition("x-name: ")[2].partition("\r")[0]

    def homes(self) -> int:
        return len(self.haproxy.socket.table(BACKEND))


def send(client: socket.socket, path: str, *fields: str) -> None:
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""]
    client.sendall("\r\n".join(lines).encode())


def ask_on(client: socket.socket, path: str, *fields: str) -> str:
    send(client, path, *fields)
    head = read_head(client)
    length = int(head.lower().partition("content-length: ")[2].partition("\r")[0] or 0)
    body = client.recv(length).decode() if length else ""
    return body if " 200 " in head.splitlines()[0] else head.split()[1]


def is_cut(client: socket.socket, within_s: float = CUT_S) -> bool:
    client.settimeout(within_s)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def until(fact: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if fact():
            return True
        time.sleep(0.02)
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def front(spoil: Spoil = whole) -> Iterator[Front]:
    """With checks that are over sooner than in earnest."""

    def write(listening: Listening) -> str:
        return spoil(text(listening)).replace("timeout check 1500ms", "timeout check 200ms")

    with TemporaryDirectory(prefix="keepwarm-hp-", dir="/tmp") as folder:
        port = free_port()
        haproxy = Haproxy(PROGRAM, Path(folder), bind=f"127.0.0.1:{port}", write=write)
        assert haproxy.take()
        try:
            yield Front(haproxy, port)
        finally:
            haproxy.end()


def member(address: str, state: MemberState = MemberState.READY, slot: int = 0) -> Seen:
    said = Presence(cluster="c", address=address, identity="m", state=state)
    return Seen(member=Member(owner=address, heartbeat_ms=1, presence=said, slot=slot), fresh=True)


def told(before: Front) -> tuple[int, str, object]:
    """Status, time to wait and code of an answer that is HAProxy's own."""
    answer = httpx.get(f"http://127.0.0.1:{before.port}/v1/responses", timeout=20)
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status_code, answer.headers.get("retry-after", ""), error["code"]


def test_what_haproxy_answers_itself_is_said_as_the_api_says_it() -> None:
    with front() as before, socket.create_server(("127.0.0.1", 0)) as dies:
        assert told(before) == (503, "1", "server_is_overloaded"), "there is no server"
        address = f"127.0.0.1:{dies.getsockname()[1]}"

        def answer() -> None:
            while True:
                client, _ = dies.accept()
                with client:
                    head = read_head(client)
                    if "/end" in head:
                        return
                    if "/health" in head:
                        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        before.do(member(address))
        assert until(lambda: before.slots()[0].up)
        assert told(before) == (502, "", "server_died"), "it had the request, and is gone"
        with socket.create_connection(dies.getsockname()) as client:
            send(client, "/end")
            thread.join()


def test_every_look_of_top_comes_to_one_server_as_long_as_that_lives() -> None:
    with Upstream("a") as a, Upstream("b") as b, front() as before:
        before.do(member(a.address), member(b.address))
        assert until(lambda: sum(each.up for each in before.slots()) == 2)
        feed = Feed(f"http://127.0.0.1:{before.port}", "a-key-of-ops-0001")
        for _ in range(8):
            with suppress(FeedError):  # they are no servers of ours
                feed.read()
        looked = {each.name: len(each.seen) for each in (a, b)}
        assert sorted(looked.values()) == [0, 8]


# Checks


def comes_up(spoil: Spoil, address: str) -> bool:
    """Whether HAProxy takes a server for one that lives."""
    with front(spoil) as before:
        before.do(member(address))
        time.sleep(1.0)
        return before.slots()[0].up and before.ask("/healthz") in ("ok", "ok\n")


@pytest.mark.parametrize(
    ("spoil", "up"),
    [
        (whole, True),
        (instead(" ver HTTP/1.1 hdr Host 127.0.0.1", ""), False),
        (instead("hdr Host 127.0.0.1", "hdr Host fleet"), False),
    ],
    ids=["whole", "HTTP/1.0", "another name"],
)
def test_a_server_is_asked_in_http_1_1_by_a_name_that_it_answers_to(
    server: ChildServer, spoil: Spoil, up: bool
) -> None:
    address = server.url.removeprefix("http://").removesuffix("/v1")
    assert comes_up(spoil, address) is up


def keeps_its_sockets_where_not_ready(spoil: Spoil) -> bool:
    with Upstream("a") as a, front(spoil) as before:
        before.do(member(a.address))
        client, _ = before.open()
        a.ready = False
        with client:
            return not is_cut(client)


def test_a_server_that_is_not_ready_keeps_its_sockets() -> None:
    assert keeps_its_sockets_where_not_ready(whole)
    assert not keeps_its_sockets_where_not_ready(instead("uri /health", "uri /readyz"))


def cuts_where_a_server_hangs(spoil: Spoil) -> bool:
    with Upstream("a") as a, front(spoil) as before:
        before.do(member(a.address))
        client, _ = before.open()
        a.hangs = True
        with client:
            cut = is_cut(client, CUT_S)
        return cut and not before.slots()[0].up


def test_sockets_of_a_server_that_hangs_are_cut() -> None:
    assert cuts_where_a_server_hangs(whole)
    assert not cuts_where_a_server_hangs(without(" on-marked-down shutdown-sessions"))


# Homes


KEYS = ("Authorization: Bearer one", "Authorization: Bearer two", "X-Api-Key: three")
OFFERED = "http-request set-var(txn.a) req.fhdr(sec-websocket-protocol),sha1,hex"


def homes_of(spoil: Spoil, *asked: tuple[str, tuple[str, ...]]) -> int:
    """How many homes the table has after these requests; none of them stands in it in clear."""
    with Upstream("a") as a, front(spoil) as before:
        before.do(member(a.address))
        for path, fields in asked:
            assert before.ask(path, *fields) == "a"
        shown = before.haproxy.socket.ask(f"show table {BACKEND}")
        assert not any(word in shown for word in ("one", "two", "three", "main", "Bearer"))
        return before.homes()


def test_sessions_of_one_name_of_several_tenants_have_a_home_each() -> None:
    asked = [("/v1/responses", (key, "X-Session-Id: main")) for key in KEYS]
    assert homes_of(whole, *asked) == 3
    assert homes_of(instead(",concat(|,txn.a)", ""), *asked) == 1
    spoil = without(
        "http-request set-var(txn.a) req.hdr(x-api-key),sha1,hex if !{ var(txn.a) -m found }"
    )
    other = ("/v1/responses", ("X-Api-Key: four", "X-Session-Id: main"))
    assert homes_of(whole, asked[2], other) == 2
    assert homes_of(spoil, asked[2], other) == 1


def test_tenants_whose_pages_open_sockets_have_a_home_each() -> None:
    path = "/v1/responses?session=main"
    asked = [
        (path, (f"Sec-WebSocket-Protocol: {offer}",))
        for offer in ("keepwarm, keepwarm-key.one", "keepwarm-key.two, keepwarm")
    ]
    assert homes_of(whole, *asked) == 2
    assert homes_of(without(f"{OFFERED} if !{{ var(txn.a) -m found }}"), *asked) == 1
    both = [(each, (*fields, KEYS[0])) for each, fields in asked]
    assert homes_of(whole, *both) == 1


def test_no_text_of_a_credential_stands_for_a_part_of_a_name() -> None:
    asked = [
        ("/v1/responses", ("Authorization: Bearer x|y", "X-Session-Id: z")),
        ("/v1/responses", ("Authorization: Bearer x", "X-Session-Id: y|z")),
    ]
    assert homes_of(whole, *asked) == 2
    with pytest.raises(AssertionError):
        assert (
            homes_of(instead("req.hdr(authorization),sha1,hex", "req.hdr(authorization)"), *asked)
            == 2
        )


def test_header_and_query_name_the_same_home_whatever_stands_in_them() -> None:
    asked = [
        ("/v1/responses", ("X-Session-Id: a b|'\"",)),
        ("/v1/responses", ("Session-Id: a b|'\"",)),
        ("/v1/responses?x=1&session=a%20b%7C%27%22", ()),
    ]
    assert homes_of(whole, *asked) == 1
    assert homes_of(instead("url_param(session),url_dec", "url_param(session)"), *asked) == 2
    odd = [("/v1/responses?session=a%00b", ()), ("/v1/responses?session=a%00c", ())]
    assert homes_of(whole, *odd) == 2
    long = "x" * 10_000
    assert homes_of(whole, ("/v1/responses", (f"X-Session-Id: {long}",))) == 1


def test_who_names_no_session_has_no_home() -> None:
    assert homes_of(whole, ("/v1/responses", KEYS[:1]), ("/v1/responses", ())) == 0


def comes_home(spoil: Spoil) -> bool:
    with ExitStack() as stack:
        three = [stack.enter_context(Upstream(name)) for name in "abc"]
        before = stack.enter_context(front(spoil))
        before.do(*(member(each.address) for each in three))
        opened = {}
        for number in range(9):
            client, name = before.open(f"X-Session-Id: s{number}")
            stack.enter_context(client)
            opened[number] = name
        assert sorted(opened.values()) == [*"aaabbbccc"]  # the fewest sockets
        return all(
            before.ask("/v1/responses", f"X-Session-Id: s{number}") == name
            for number, name in reversed(opened.items())
        )


def test_new_sessions_go_where_the_fewest_sockets_are_and_come_home() -> None:
    assert comes_home(whole)
    assert not comes_home(without("stick on var(txn.key)"))
    with pytest.raises(AssertionError):
        comes_home(instead("balance leastconn", "balance source"))


def test_the_table_is_bounded() -> None:
    with Upstream("a") as a, front(instead("size 1048576", "size 16")) as before:
        before.do(member(a.address))
        with socket.create_connection(("127.0.0.1", before.port), 5) as client:
            for number in range(200):
                assert ask_on(client, "/v1/responses", f"X-Session-Id: s{number}") == "a"
        assert before.homes() <= 16


# A drain


def drained(but: str = "nothing", spoil: Spoil = whole) -> tuple[bool, str]:
    """Of a server that drains: whether an open socket stays where its listener closes, and where
    its session's next one goes."""
    with Upstream("a") as a, Upstream("b") as b, front(spoil) as before:
        before.do(member(a.address))
        client, _ = before.open("X-Session-Id: s")
        draining = member(a.address, MemberState.DRAINING, slot=1)
        before.do(draining, member(b.address), but=but)
        if but == "nothing" and spoil is whole:
            assert before.haproxy.socket.slots(BACKEND)[0].drained
        where = before.ask("/v1/responses", "X-Session-Id: s")
        a.stop_listening()
        with client:
            return not is_cut(client), where


def test_a_drain_keeps_open_sockets_and_sends_their_sessions_elsewhere() -> None:
    assert drained() == (True, "b")


def test_without_disabling_checks_a_drain_cuts_what_it_wants_to_keep() -> None:
    stays, _ = drained(but="disable health")
    assert not stays


def test_without_clearing_the_table_sessions_come_back_to_who_drains() -> None:
    _, where = drained(but="clear table")
    assert where == "a"


# The rest


def weight_at_first(spoil: Spoil) -> int:
    with Upstream("a") as a, front(spoil) as before:
        before.do(member(a.address), but="weight")
        return before.slots()[0].weight


def test_a_member_has_its_whole_weight_at_first() -> None:
    assert weight_at_first(whole) == 100
    assert weight_at_first(without(" weight 100")) == 1


def stays_silent(spoil: Spoil) -> bool:
    """Whether a socket may say nothing for longer than a request."""

    def short(text_: str) -> str:
        shorter = spoil(text_).replace("timeout client 1h", "timeout client 300ms")
        return shorter.replace("timeout server 1h", "timeout server 300ms")

    with Upstream("a") as a, front(short) as before:
        before.do(member(a.address))
        client, name = before.open()
        assert name == "a"
        with client:
            return not is_cut(client, 1.0)


def test_a_socket_may_be_silent_for_longer_than_a_request() -> None:
    assert stays_silent(whole)
    assert not stays_silent(without("timeout tunnel 2h"))


def connections_are_one_clients(spoil: Spoil) -> bool:
    with Upstream("a") as a, front(spoil) as before:
        before.do(member(a.address))
        ends = [socket.create_connection(("127.0.0.1", before.port), 5) for _ in range(4)]
        for number in (0, 1, 2, 3, 0, 0, 1, 1, 3, 2, 1, 0):
            assert ask_on(ends[number], f"/v1/responses?{number}") == "a"
        for client in ends:
            client.close()
        assert all("x-forwarded-for: 127.0.0.1" in head.lower() for _, head in a.seen)
        pairs = {(at, head.split()[1]) for at, head in a.seen}
        return len(pairs) == len({at for at, _ in pairs})


def test_a_connection_to_a_server_is_one_clients_whose_address_it_tells() -> None:
    assert connections_are_one_clients(whole)
    assert not connections_are_one_clients(without("http-reuse never"))
    with pytest.raises(AssertionError):
        connections_are_one_clients(without("option forwardfor"))


def test_haproxy_goes_on_where_its_starter_is_gone_and_is_found_again() -> None:
    with front() as before, Upstream("a") as a:
        before.do(member(a.address))
        folder = before.haproxy.socket.path.parent
        again = Haproxy(
            PROGRAM, folder, bind=f"127.0.0.1:{before.port}",
            write=lambda listening: text(listening).replace("check 1500ms", "check 200ms"),
        )  # fmt: skip
        assert not again.take()
        assert again.socket.process() == before.haproxy.socket.process()
        other = Haproxy(PROGRAM, folder, bind="127.0.0.1:1")
        with pytest.raises(HaproxyError, match="runs here with other options"):
            other.take()
        assert before.ask() == "a"


def test_an_address_that_is_taken_is_told_in_a_line() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        TemporaryDirectory(prefix="keepwarm-hp-", dir="/tmp") as folder,
    ):
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(HaproxyError, match=r"HAProxy did not start: .*cannot bind"):
            Haproxy(PROGRAM, Path(folder), bind=bind).take()


def test_the_file_is_one_that_haproxy_takes_without_a_word(tmp_path: Path) -> None:
    file = tmp_path / "x.cfg"
    file.write_text(text(Listening(bind="127.0.0.1:1", commands=tmp_path / "s")))
    checked = subprocess.run(
        [PROGRAM, "-c", "-f", str(file)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0
    with suppress(ValueError):
        assert "WARNING" not in checked.stderr
