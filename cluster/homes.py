"""Where sessions are at home, kept in a file: HAProxy's table dies with it, and this does not.

A line a session: its key, which is a hash, and the address of its home. By address and not by slot,
since the slot may be another's when it is read.

Always true: a file that is there is whole; one that cannot be read is none.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from cluster.haproxy_socket import Entry
from cluster.membership import Slot


def save(path: Path, entries: Iterable[Entry], slots: Sequence[Slot]) -> int:
    """Write the homes of all sessions whose home is there; returns how many those are.

    Raises:
        OSError: it cannot be written; what was there before is.
    """
    addresses = {slot.id: slot.address for slot in slots if not slot.maintained}
    lines = [
        f"{each.key} {addresses[each.server_id]}\n"
        for each in entries
        if each.server_id in addresses
    ]
    new = path.with_suffix(".new")
    new.write_text("".join(lines))
    os.replace(new, path)
    return len(lines)


def load(path: Path, slots: Sequence[Slot]) -> list[Entry]:
    """The homes that were saved, as far as they are somebody's slot now."""
    ids = {slot.address: slot.id for slot in slots if not slot.maintained}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    pairs = (line.split(" ") for line in lines)
    return [
        Entry(key=pair[0], server_id=ids[pair[1]])
        for pair in pairs
        if len(pair) == 2 and pair[0].isalnum() and pair[1] in ids
    ]
