"""What HAProxy shows is read as it stands, and what it says to a command that changed nothing."""

import socket
import threading
from pathlib import Path

import pytest

from cluster import haproxy_socket
from cluster.haproxy import Haproxy
from cluster.haproxy_socket import (
    CommandRefused,
    Entry,
    HaproxyBusy,
    HaproxyGone,
    HaproxySocket,
    harmless,
    read_slots,
    read_table,
)

SHOWN = """1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight \
srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state \
srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord
3 B 1 r1 127.0.0.1 2 12 50 100 0 1 0 1 2 0 0 0 - 8123 -
3 B 2 r2 127.0.0.1 0 5 100 100 0 1 0 0 14 0 0 0 - 1 -
3 B 3 r3 ::1 2 4 100 100 1 8 2 0 6 0 0 0 - 8124 -
"""


def test_slots_are_read_by_the_names_of_their_columns() -> None:
    drained, empty, ready = read_slots(SHOWN)
    assert (drained.id, drained.address, drained.weight) == (1, "127.0.0.1:8123", 50)
    assert (drained.up, drained.drained, drained.maintained, drained.checked) == (
        *(True, True, False),
        False,
    )
    assert (empty.up, empty.drained, empty.maintained, empty.checked) == (False, False, True, True)
    assert (ready.number, ready.address) == (3, "[::1]:8124")
    assert (ready.up, ready.drained, ready.maintained, ready.checked) == (True, False, False, True)
    assert read_slots("") == []


def test_the_table_is_read_with_what_newer_versions_show_more() -> None:
    shown = """# table: B, type: string, size:1048576, used:2
0x55: key=aaaa use=0 exp=7200000 server_id=2 server_key=-
0x56: key=bb use=0 exp=7200000 shard=0 server_id=3
0x57: key=cc use=0 exp=1
"""
    assert read_table(shown) == [
        Entry(key="aaaa", server_id=2),
        Entry(key="bb", server_id=3),
    ]


@pytest.mark.parametrize(
    ("reply", "fine"),
    [
        ("", True),
        (
            "no need to change the addr, port changed from '1' to '2' by 'stats socket command'",
            True,
        ),
        ("IP changed from '1.1.1.1' to '::1', no need to change the port", True),
        ("No such server.", False),
        ("Permission denied", False),
        ("Invalid addr 'host.x' by 'stats socket command'", False),
    ],
)
def test_a_reply_is_not_always_an_error(reply: str, fine: bool) -> None:
    assert harmless(reply) is fine


def test_what_is_refused_is_told_and_who_is_gone_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(HaproxyGone):
        HaproxySocket(path).do("x")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def answer() -> None:
            for reply in (b"No such server.\n\n", b"\n"):
                with listening.accept()[0] as asked:
                    asked.recv(1000)
                    asked.sendall(reply)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(CommandRefused, match="weight 3: No such server"):
            HaproxySocket(path).do("set server b/r9 weight 3")
        HaproxySocket(path).do("set server b/r1 weight 3")
        answering.join()


def test_one_that_does_not_answer_in_time_is_busy_and_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(haproxy_socket, "REPLY_S", 0.05)
    path = tmp_path / "haproxy.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(HaproxyBusy):
            HaproxySocket(path).ask("show info")
        with pytest.raises(HaproxyBusy):  # and no other one is started in its place
            Haproxy("/nonexistent", tmp_path, bind="127.0.0.1:1").take()
