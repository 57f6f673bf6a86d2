"""A process that writes turns into a journal's file, as many as it may, and says which.

``python -m tests.support.journal_load FILE SEED``: before each commit a line ``? ID...``, and one
of ``! ID...`` once it was told of. A number on its standard input is so many commits more; with
that it ends.
"""

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sessions.journal.records import TurnRecord
from sessions.journal.sqlite import SqliteJournal
from tests.support.journals import record, reservation

SESSIONS = 40


class Load:
    """The process as a test sees it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._changed = threading.Condition()
        self._begun: set[str] = set()
        self._told: set[str] = set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, *ids = line.split()
            with self._changed:
                (self._told if kind == "!" else self._begun).update(ids)
                self._changed.notify_all()

    def go_on(self, commits: int) -> None:
        """Let it make so many more."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{commits}\n")
        self._process.stdin.flush()

    def told(self, more: int) -> frozenset[str]:
        """All turns that were told of by now, and ``more`` than now at least."""
        with self._changed:
            wanted = len(self._told) + more
            assert self._changed.wait_for(lambda: len(self._told) >= wanted, 60)
            return frozenset(self._told)

    @property
    def begun(self) -> frozenset[str]:
        """All that may have been written by now."""
        with self._changed:
            return frozenset(self._begun)

    def end(self) -> None:
        """Wait for its end, and for all that it said."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        self._reader.join(60)


@contextmanager
def journal_load(file: Path, seed: int) -> Iterator[Load]:
    """One that runs."""
    words = [sys.executable, "-m", "tests.support.journal_load", str(file), str(seed)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Load(process)
        finally:
            process.kill()


def drawn_turns(chance: random.Random, seed: int) -> Iterator[list[TurnRecord]]:
    """Commits without end: turns of sessions that grow and fork, some with accounts above them."""
    heads: list[TurnRecord] = []
    number = 0
    while True:
        commit: list[TurnRecord] = []
        for _ in range(chance.randrange(1, 5)):
            parent = chance.choice(heads) if heads and chance.random() < 0.8 else None
            stays = parent is not None and chance.random() < 0.8
            session = parent.session if stays and parent is not None else f"s{number % SESSIONS}"
            turn = record(
                f"r{seed}_{number}",
                parent=parent,
                session=session,
                said=chance.random() < 0.9,
                size=chance.randrange(1, 200),
                created_s=1_000.0 + number,
                request_id=f"q{number}" if chance.random() < 0.3 else None,
                accounts=("tenant",) if chance.random() < 0.3 else (),
                item_id=f"i{number}" if chance.random() < 0.3 else None,
            )
            number += 1
            commit.append(turn)
            if turn.entry is not None:
                heads.append(turn)
                del heads[:-SESSIONS]
        yield commit


def _child(file: Path, seed: int) -> None:
    turns = drawn_turns(random.Random(seed), seed)
    journal = SqliteJournal(file, fingerprint=b"f")
    commits = (commit for line in sys.stdin for commit in itertools.islice(turns, int(line)))
    for number, commit in enumerate(commits):
        ids = " ".join(turn.response_id for turn in commit)
        print(f"? {ids}", flush=True)
        journal.append(commit, [reservation(f"held{number}", session=f"s{number % SESSIONS}")])
        journal.reserve([reservation(f"held{number}", session=f"s{number % SESSIONS}", output=0)])
        print(f"! {ids}", flush=True)
    journal.close()


if __name__ == "__main__":
    _child(Path(sys.argv[1]), int(sys.argv[2]))
