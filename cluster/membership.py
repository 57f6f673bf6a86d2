"""Which member of a cluster has which slot of the balancer, and what that is to be told of it.

A pure function of the members' rows and of what the balancer shows of its slots: what was lost on
the way, or done by somebody else, is seen and done again the next time. The rows say who has which
slot; a member whose slot is another's has none in its row.

Always true: no slot is given twice; a member that may take new sessions has one as long as there
are any; nobody is cut off whose process may still serve its sockets.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sessions.journal.members import NO_SLOT, Member, MemberState

WHOLE, HALF = 100, 50
"""Weights of a member, and of one whose KV cache has been nearly full for a while."""
CLEAR_MS = 1000
"""So long after a member was told that it is left alone what still found its way there is cleared:
a request that was on its way remembers where it went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One of the balancer's servers, as it shows it."""

    number: int
    id: int
    """The balancer's own, as its table of sessions names it."""
    address: str
    """The server's address, ``HOST:PORT``."""
    up: bool
    """Its checks succeed, or it has none."""
    maintained: bool
    """Whether the slot is in maintenance: nobody is there."""
    drained: bool
    """Only who is there already, and sessions that are known to be."""
    checked: bool
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A member's row, and what only time tells."""

    member: Member
    fresh: bool
    """Its heart was heard beating within the time after which servers count as dead."""
    pressed: bool = False
    """Its KV cache has been nearly full for a while."""
    told_now: bool = False
    """It was told a moment ago that it is left alone."""

    @property
    def draining(self) -> bool:
        """Whether the server is about to end."""
        return self.member.presence.state is MemberState.DRAINING

    @property
    def welcoming(self) -> bool:
        """New sessions may go there."""
        return self.fresh and self.member.presence.state is MemberState.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Commands about one slot, in their order; what follows one that failed is left out."""

    slot: int
    commands: tuple[str, ...]
    tells: str | None = None
    """The member that may be told, once they are done, that it is left alone."""
    clears: bool = False
    """Sessions that are at home there are forgotten."""
    opens: bool = False
    """New sessions may go there from now on, which they could not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is to be done now."""

    slots: Mapping[str, int]
    """Slots to be written into rows, by member; only those that change."""
    steps: tuple[Step, ...]
    left_out: tuple[str, ...]
    """Living members that there is no slot for."""


def plan(backend: str, seen: Sequence[Seen], slots: Sequence[Slot]) -> Plan:
    """Bring the balancer to where the rows say it should be.

    Args:
        backend: the balancer's name for all slots together.
        seen: every member of the cluster, the dead ones too.
        slots: all there are.
    """
    by_number = {slot.number: slot for slot in slots}
    served = {each.member.presence.address for each in seen if each.fresh}
    living = [each for each in seen if _lives(each, by_number.get(each.member.slot), served)]
    holders = _keep(living, by_number)
    left_out = _place(living, holders, by_number)
    given = {each.member.owner: number for number, each in holders.items()}
    changes = {
        each.member.owner: given.get(each.member.owner, NO_SLOT)
        for each in seen
        if given.get(each.member.owner, NO_SLOT) != each.member.slot
    }
    steps = (
        _step(f"{backend}/r{number}", backend, slot, holders.get(number))
        for number, slot in sorted(by_number.items())
    )
    return Plan(
        slots=changes,
        steps=tuple(step for step in steps if step.commands or step.tells),
        left_out=tuple(left_out),
    )


def _lives(seen: Seen, slot: Slot | None, served: Collection[str]) -> bool:
    """It was heard, or it is only the database that hears nothing of it: the balancer does.
    ``served``: addresses of those that were heard."""
    address = seen.member.presence.address
    if seen.fresh or slot is None or slot.maintained or address in served:
        return seen.fresh
    return slot.up and slot.checked and slot.address == address


def _keep(living: Iterable[Seen], slots: Mapping[int, Slot]) -> dict[int, Seen]:
    """Members that keep the slot that their row names or, where it names none, the one where the
    balancer has them: of several the one that is there."""

    def there(place: tuple[int, Seen]) -> tuple[bool, bool, str]:
        number, each = place
        return not _is_at(each, slots[number]), not each.fresh, each.member.owner

    places: list[tuple[int, Seen]] = []
    for each in living:
        if each.member.slot in slots:
            places.append((each.member.slot, each))
        elif each.fresh:  # that it was given a slot may have been lost on its way to the row
            places += [(number, each) for number, slot in slots.items() if _is_at(each, slot)][:1]
    holders: dict[int, Seen] = {}
    for number, each in sorted(places, key=there):
        holders.setdefault(number, each)
    return holders


def _is_at(seen: Seen, slot: Slot) -> bool:
    return not slot.maintained and slot.address == seen.member.presence.address


def _place(
    living: Iterable[Seen], holders: dict[int, Seen], slots: Mapping[int, Slot]
) -> list[str]:
    """Give slots to those that have none, who welcomes sessions first: the one where the balancer
    has them already, else the first that is free. Returns who got none."""
    kept = {each.member.owner for each in holders.values()}
    homeless = [each for each in living if each.fresh and each.member.owner not in kept]
    homeless.sort(key=lambda each: (not each.welcoming, each.member.owner))
    waiting = []
    for each in homeless:
        at = [number for number in sorted(slots) if _is_at(each, slots[number])]
        if at and at[0] not in holders:
            holders[at[0]] = each
        else:
            waiting.append(each)
    free = iter(sorted(slots.keys() - holders.keys()))
    left_out = []
    for each in waiting:
        number = next(free, None)
        if number is None:
            left_out.append(each.member.owner)
        else:
            holders[number] = each
    return left_out


def _step(name: str, backend: str, slot: Slot, holder: Seen | None) -> Step:
    if holder is None:
        empty = () if slot.maintained else (f"set server {name} state maint",)
        return Step(slot=slot.number, commands=empty)
    moved = slot.address != holder.member.presence.address
    commands = _moving(name, slot, holder) if moved else []
    maintained, checked = slot.maintained or moved, slot.checked
    if not checked and not holder.draining:
        commands.append(f"enable health {name}")
    weight = HALF if holder.pressed else WHOLE
    if slot.weight != weight:
        commands.append(f"set server {name} weight {weight}")
    opens = holder.welcoming and (maintained or slot.drained)
    if opens:
        commands.append(f"set server {name} state ready")
    if not holder.welcoming and (maintained or not slot.drained):
        commands.append(f"set server {name} state drain")
    if not holder.draining:
        return Step(slot=slot.number, commands=tuple(commands), opens=opens)
    if checked:
        commands.append(f"disable health {name}")
    told = holder.member.told_ms != 0
    clears = not told or holder.told_now
    if clears:
        commands.append(f"clear table {backend} data.server_id eq {slot.id}")
    tells = None if told else holder.member.owner
    return Step(slot=slot.number, commands=tuple(commands), tells=tells, clears=clears)


def _moving(name: str, slot: Slot, holder: Seen) -> list[str]:
    """Somebody else comes to the slot; who was there has ended."""
    host, _, port = holder.member.presence.address.rpartition(":")
    first = [] if slot.maintained else [f"set server {name} state maint"]
    return [*first, f"set server {name} addr {host.strip('[]')} port {port}"]
