"""Time as it tells of a cluster's members: whose heart was heard lately, whose KV is pressed.

A heart beats where its row changes: no clock of a machine or of the database is compared with
another, and a database that was away for a minute makes nobody dead. Only the balancer's loop uses
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.membership import CLEAR_MS, Seen
from sessions.journal.members import Member, MemberState

PRESSED_PERMILLE, PRESSED_S = 900, 30.0
"""A KV cache that has been so full for so long gets fewer new sessions."""

LEAVING_S = 30.0
"""Seconds that a member may be silent that drains: nobody checks it, and it may serve still."""


@dataclass(slots=True)
class _Heard:
    heartbeat_ms: int
    at_s: float
    pressed_since_s: float | None = None
    told_at_s: float | None = None


class Watch:
    """The balancer's memory of its members."""

    def __init__(self, dead_s: float) -> None:
        """``dead_s``: who was not heard for longer counts as dead."""
        self._dead_s = dead_s
        self._heard: dict[str, _Heard] = {}

    def look(self, members: Sequence[Member], now_s: float) -> list[Seen]:
        """The rows as they were read just now; ``now_s``: monotonic seconds."""
        known, self._heard = self._heard, {}
        return [self._see(each, known.get(each.owner), now_s) for each in members]

    def nothing_read(self) -> None:
        """The rows could not be read: that nobody was heard meanwhile says nothing."""
        self._heard.clear()

    def _see(self, member: Member, before: _Heard | None, now_s: float) -> Seen:
        heard = before or _Heard(member.heartbeat_ms, now_s)
        if heard.heartbeat_ms != member.heartbeat_ms:
            heard.heartbeat_ms, heard.at_s = member.heartbeat_ms, now_s
        self._heard[member.owner] = heard
        if member.presence.load.kv_permille < PRESSED_PERMILLE:
            heard.pressed_since_s = None
        elif heard.pressed_since_s is None:
            heard.pressed_since_s = now_s
        if not member.told_ms:
            heard.told_at_s = None
        elif heard.told_at_s is None:
            heard.told_at_s = now_s
        draining = member.presence.state is MemberState.DRAINING
        return Seen(
            member=member,
            fresh=now_s - heard.at_s <= (LEAVING_S if draining else self._dead_s),
            pressed=heard.pressed_since_s is not None
            and now_s - heard.pressed_since_s >= PRESSED_S,
            told_now=heard.told_at_s is not None and now_s - heard.told_at_s <= CLEAR_MS / 1000,
        )
