"""A replica is started in its slot, watched, buried when it dies, and never left without an end."""

import contextlib
import http.server
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import keeper as module
from cluster.keeper import HANGS_S, ReplicaKeeper, ReplicaLost, ReplicaPlan, answers
from cluster.replica_process import ReplicaDidNotStart
from runtime.offload.disk import MARK
from sessions.journal.errors import JournalUnavailable
from sessions.journal.members import Member, MemberLoad, MemberState, Presence
from tests.support.clock import FakeClock
from tests.support.fake_keepwarm import fake_keepwarm
from tests.unit.cluster.test_slots import FakeLocks

ADDRESS = "127.0.0.1:4711"


class FakeMembers:
    """Rows in which the fake server becomes ready."""

    def __init__(self) -> None:
        said = Presence(cluster="c", address=ADDRESS, identity="m", state=MemberState.READY)
        said = replace(said, load=MemberLoad(running=3))
        self.rows = [Member(owner="a", heartbeat_ms=1, presence=said)]
        self.away = 0
        self.buried: list[str] = []

    def look(self) -> list[Member]:
        if self.away:
            self.away -= 1
            raise JournalUnavailable("away")
        return self.rows

    def bury(self, address: str) -> None:
        self.buried.append(address)


class Kept:
    def __init__(self, tmp_path: Path, *options: str, kv_root: Path | None = None) -> None:
        self.members, self.locks, self.clock = FakeMembers(), FakeLocks(1), FakeClock(0.0)
        self.died = threading.Event()
        self.folder = tmp_path / "state"
        plan = ReplicaPlan(
            cluster="c", journal="postgresql://u:secret@db/k", host="127.0.0.1",
            options=options, folder=self.folder, kv_root=kv_root,
            environment=fake_keepwarm(tmp_path),
        )  # fmt: skip
        self.keeper = ReplicaKeeper(
            plan, rows=self.members, lock_of=self.locks, on_death=self.died.set,
            clock=self.clock, pause=self.clock.advance,
        )  # fmt: skip

    @property
    def words(self) -> list[str]:
        """The command line of the server."""
        process = self.keeper.process
        assert process is not None
        return list(process.process.args)  # type: ignore[arg-type]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.keeper.end()


def test_it_starts_in_the_lowest_free_slot_and_is_ready_when_its_row_says_so(kept: Kept) -> None:
    kept.members.away = 2
    assert kept.keeper.start() == ADDRESS
    assert kept.keeper.slot == 2
    assert kept.locks.held == {1, 2}
    words = " ".join(kept.words)
    assert "--cluster c --advertise 127.0.0.1 --host 127.0.0.1 --cluster-slot 2" in words
    assert "secret" not in words
    assert kept.keeper.load() == MemberLoad(running=3)
    kept.keeper.leave(20)
    assert kept.locks.held == {1}
    assert not kept.died.is_set()
    assert not kept.members.buried


def test_a_death_is_buried_and_told(kept: Kept) -> None:
    kept.keeper.start()
    process = kept.keeper.process
    assert process is not None
    process.process.kill()
    assert kept.died.wait(20)
    assert kept.members.buried == [ADDRESS]
    with pytest.raises(ReplicaLost, match="it has ended"):
        kept.keeper.check()


def test_one_that_answers_nothing_for_long_is_killed_and_buried(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.keeper.start()
    process = kept.keeper.process
    assert process is not None
    process.process.send_signal(signal.SIGSTOP)
    answer = [True]
    monkeypatch.setattr(module, "answers", lambda _: answer[0])
    kept.keeper.check()
    answer[0] = False
    kept.clock.advance(HANGS_S - 1)
    kept.keeper.check()
    answer[0] = True
    kept.keeper.check()
    answer[0] = False
    kept.clock.advance(HANGS_S + 1)
    with pytest.raises(ReplicaLost, match="answered nothing"):
        kept.keeper.check()
    assert process.process.returncode == -signal.SIGKILL
    assert kept.members.buried == [ADDRESS]
    assert kept.locks.held == {1}


def test_one_that_never_becomes_ready_is_ended(kept: Kept) -> None:
    kept.members.rows = []
    with pytest.raises(ReplicaDidNotStart, match="is not ready after 600 s"):
        kept.keeper.start()
    assert kept.locks.held == {1}


def test_one_that_does_not_start_gives_its_slot_back(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "wrong")
    with pytest.raises(ReplicaDidNotStart, match="keepwarm: error: no"):
        kept.keeper.start()
    assert kept.locks.held == {1}


def test_its_folder_is_its_slots_and_one_that_is_still_used_is_left_out(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    kept = Kept(tmp_path, kv_root=root)
    kept.keeper.start()
    assert kept.words[-2:] == ["--disk-kv-folder", str(root / "slot-2")]
    kept.keeper.end()
    (root / "slot-2").mkdir(parents=True)
    with _used(root / "slot-2" / MARK):
        kept.keeper.start()
        assert kept.words[-2:] == ["--disk-kv-mib", "0"]
        kept.keeper.end()


def test_a_folder_that_is_refused_costs_warmth_and_no_server(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "no-disk", kv_root=tmp_path / "kv")
    assert kept.keeper.start() == ADDRESS
    assert kept.words[-2:] == ["--disk-kv-mib", "0"]
    kept.keeper.end()


def test_two_of_one_host_start_one_after_the_other(tmp_path: Path) -> None:
    order: list[str] = []

    def start(name: str) -> None:
        with module.start_turn(tmp_path / "starting"):
            order.append(f"{name} begins")
            order.append(f"{name} ends")

    threads = [threading.Thread(target=start, args=(name,)) for name in "abc"]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert [word.split()[1] for word in order] == ["begins", "ends"] * 3


@contextlib.contextmanager
def _used(file: Path) -> Iterator[None]:
    import fcntl

    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize(("status", "lives"), [(200, True), (503, False)])
def test_it_lives_where_health_says_so(status: int, lives: bool) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert answers(f"127.0.0.1:{server.server_port}") is lives
        thread.join(10)
    assert not answers(f"127.0.0.1:{server.server_port}")
