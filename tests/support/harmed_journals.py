"""What becomes of a journal's files under the server that has them open."""

from collections.abc import Callable
from pathlib import Path

Harm = Callable[[Path], None]


def removed(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def replaced(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def without(what: str) -> Harm:
    def harm(path: Path) -> None:
        path.with_name(path.name + what).unlink()

    return harm


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def written_over(path: Path) -> None:
    """By an older copy of itself, in place."""
    path.write_bytes((path.parent / "older").read_bytes())


DISPLACED = {
    "removed": removed,
    "moved": moved,
    "replaced": replaced,
    "no log": without("-wal"),
    "no mark": without(".mark"),
    "no lock": without(".lock"),
    "emptied": emptied,
}
