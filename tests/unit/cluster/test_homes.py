"""Homes of sessions come back to where their addresses are now."""

from dataclasses import replace
from pathlib import Path

from cluster.haproxy_socket import Entry
from cluster.homes import load, save
from cluster.membership import Slot

ONE = Slot(
    number=1, id=11, address="10.0.0.1:80", up=True, maintained=False, drained=False,
    checked=True, weight=100,
)  # fmt: skip
TWO = replace(ONE, number=2, id=12, address="10.0.0.2:80")


def test_homes_follow_their_addresses_and_are_dropped_with_them(tmp_path: Path) -> None:
    file = tmp_path / "homes"
    entries = [Entry(key="aa", server_id=11), Entry(key="bb", server_id=12)]
    assert save(file, [*entries, Entry(key="cc", server_id=13)], [ONE, TWO]) == 2
    moved = replace(TWO, number=7, id=17)
    assert load(file, [moved]) == [Entry(key="bb", server_id=17)]
    assert load(file, [replace(moved, maintained=True)]) == []


def test_a_file_that_cannot_be_read_or_is_another_is_none(tmp_path: Path) -> None:
    file = tmp_path / "homes"
    assert load(file, [ONE]) == []
    file.write_bytes(b"\xff\xfe")
    assert load(file, [ONE]) == []
    file.write_text("aa 10.0.0.1:80 more\n\na;b 10.0.0.1:80\naa\nbb 10.0.0.1:80\n")
    assert load(file, [ONE]) == [Entry(key="bb", server_id=11)]
