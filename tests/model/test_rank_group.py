"""Where ranks meet: bytes of any type, no other user's files, and a stranger at the door."""

import socket
from pathlib import Path

import pytest
import torch

from runtime.model.config import LoadError
from runtime.model.rank_group import store_in
from tests.support.rank_groups import Groups

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


@pytest.mark.parametrize("dtype", TYPES)
def test_gathered_tensors_are_all_ranks_in_their_order(dtype: torch.dtype) -> None:
    groups = Groups(3)
    own = [torch.arange(6).view(2, 3).to(dtype) + rank for rank in range(3)]
    turned = [part.T.contiguous().T for part in own]  # the same numbers, otherwise laid out
    for found in groups.on_all(lambda rank: groups.groups[rank].gathered(turned[rank])):
        assert all(torch.equal(one, other) for one, other in zip(found, own, strict=True))


def test_rank_0s_tensor_is_copied_to_all() -> None:
    groups = Groups(2)
    own = [torch.tensor([5, 6]), torch.tensor([0, 0])]
    for found in groups.on_all(lambda rank: groups.groups[rank].copied_from_first(own[rank])):
        assert found.tolist() == [5, 6]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_ranks_do_not_meet_where_others_may_write(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(LoadError, match="others may write there"):
        store_in(folder, 2)
    folder.chmod(0o700)
    store_in(folder, 2).set("a", "b")


def _listening(before: set[str]) -> list[tuple[str, int]]:
    """Addresses at which this process has begun to listen."""
    found = []
    for line in _lines() - before:
        address, state = line.split()[1], line.split()[3]
        if state == "0A":
            host, port = address.split(":")
            found.append((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)))
    return found


def _lines() -> set[str]:
    """Of the system's table of sockets, those that are this process's."""
    own = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            own.add(str(link.readlink()))
        except OSError:
            continue
    rows = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    return {row for row in rows if f"socket:[{row.split()[9]}]" in own}


@pytest.mark.skipif(
    not Path("/proc/self/net/tcp").exists(), reason="needs Linux's table of sockets"
)
def test_ranks_listen_on_loopback_and_a_stranger_changes_nothing() -> None:
    """Whatever a stranger says, sums are those of the ranks."""
    before = _lines()
    groups = Groups(3)
    listening = _listening(before)
    assert all(host.startswith("127.") for host, _ in listening)
    strangers = []
    for address in listening:
        for said in (b"", b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64):
            stranger = socket.create_connection(address, timeout=5)
            stranger.sendall(said)
            strangers.append(stranger)
    parts = [torch.full((9, 4), float(rank)) for rank in range(3)]
    for _ in range(20):
        for found in groups.on_all(lambda rank: groups.groups[rank].gathered(parts[rank])):
            assert all(torch.equal(one, other) for one, other in zip(found, parts, strict=True))
    for stranger in strangers:
        stranger.close()
