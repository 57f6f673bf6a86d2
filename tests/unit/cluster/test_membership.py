"""Whatever happens to members, rows and replies: who is ready has a slot, and nobody shares one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster.balancing import Balancer
from cluster.membership import Seen, Slot, plan
from cluster.watch import LEAVING_S, Watch
from sessions.journal.errors import JournalUnavailable
from sessions.journal.members import NO_SLOT, Member, MemberState, Presence
from tests.support.clock import FakeClock
from tests.support.fake_haproxy import NOWHERE, FakeHaproxy

READY, STARTING, DRAINING = MemberState.READY, MemberState.STARTING, MemberState.DRAINING


def member(name: str, state: MemberState = READY, slot: int = NO_SLOT, told_ms: int = 0) -> Member:
    said = Presence(cluster="c", address=f"10.0.0.{name}:80", identity="m", state=state)
    return Member(owner=name, heartbeat_ms=1, presence=said, slot=slot, told_ms=told_ms)


def slot(number: int, address: str = NOWHERE, **more: bool | int) -> Slot:
    kept: dict[str, bool | int] = {"up": True, "maintained": False, "drained": False}
    kept |= {"checked": True, "weight": 100} | more
    return Slot(number=number, id=number, address=address, **kept)  # type: ignore[arg-type]


def commands(*seen: Seen, slots: Sequence[Slot]) -> list[str]:
    return [line for step in plan("b", seen, slots).steps for line in step.commands]


EMPTY = slot(1, maintained=True, up=False)


def test_a_new_member_gets_the_first_free_slot_its_address_and_then_its_state() -> None:
    found = plan("b", [Seen(member=member("1"), fresh=True)], [EMPTY])
    assert found.slots == {"1": 1}
    assert found.steps[0].commands == (
        "set server b/r1 addr 10.0.0.1 port 80",
        "set server b/r1 state ready",
    )


def test_where_all_is_as_it_should_be_nothing_is_done() -> None:
    there = slot(1, "10.0.0.1:80")
    found = plan("b", [Seen(member=member("1", slot=1), fresh=True)], [there])
    assert (found.slots, found.steps, found.left_out) == ({}, (), ())


def test_one_that_starts_keeps_its_sockets_and_gets_nobody_new() -> None:
    there = slot(1, "10.0.0.1:80")
    starting = Seen(member=member("1", STARTING, slot=1), fresh=True)
    assert commands(starting, slots=[there]) == ["set server b/r1 state drain"]
    assert not commands(starting, slots=[replace(there, drained=True)])


def test_a_drain_is_told_only_behind_state_checks_and_table() -> None:
    draining = Seen(member=member("1", DRAINING, slot=1), fresh=True)
    (step,) = plan("b", [draining], [slot(1, "10.0.0.1:80")]).steps
    assert step.commands == (
        "set server b/r1 state drain",
        "disable health b/r1",
        "clear table b data.server_id eq 1",
    )
    assert step.tells == "1"
    told = replace(draining, member=member("1", DRAINING, slot=1, told_ms=5))
    assert not plan("b", [told], [slot(1, "10.0.0.1:80", drained=True, checked=False)]).steps


def test_what_was_on_its_way_as_the_table_was_cleared_is_cleared_behind_it() -> None:
    gone = slot(1, "10.0.0.1:80", drained=True, checked=False)
    told = Seen(member=member("1", DRAINING, slot=1, told_ms=5), fresh=True, told_now=True)
    assert commands(told, slots=[gone]) == ["clear table b data.server_id eq 1"]


def test_a_slot_whose_process_has_ended_is_free_and_cuts_what_was_left() -> None:
    assert commands(slots=[slot(1, "10.0.0.1:80")]) == ["set server b/r1 state maint"]
    after = commands(
        Seen(member=member("2"), fresh=True), slots=[slot(1, "10.0.0.1:80", checked=False)]
    )
    assert after == [
        "set server b/r1 state maint",
        "set server b/r1 addr 10.0.0.2 port 80",
        "enable health b/r1",
        "set server b/r1 state ready",
    ]


def test_who_is_not_heard_but_answers_keeps_its_sockets_and_gets_nobody_new() -> None:
    silent = Seen(member=member("1", slot=1), fresh=False)
    assert commands(silent, slots=[slot(1, "10.0.0.1:80")]) == ["set server b/r1 state drain"]
    down = slot(1, "10.0.0.1:80", up=False)
    found = plan("b", [silent], [down])
    assert found.slots == {"1": NO_SLOT}
    assert found.steps[0].commands == ("set server b/r1 state maint",)


def test_an_old_row_does_not_live_by_the_answers_of_who_came_to_its_address() -> None:
    old = Seen(member=member("1", slot=1), fresh=False)
    new = replace(member("2"), presence=member("1").presence)
    found = plan("b", [old, Seen(member=new, fresh=True)], [slot(1, "10.0.0.1:80")])
    assert found.slots == {"1": NO_SLOT, "2": 1}
    assert not found.steps


def test_of_two_rows_with_one_slot_the_one_that_is_there_keeps_it() -> None:
    both = [Seen(member=member(name, slot=1), fresh=True) for name in ("1", "2")]
    found = plan("b", both, [slot(1, "10.0.0.2:80"), replace(EMPTY, number=2)])
    assert found.slots == {"1": 2}


def test_a_member_is_found_where_the_balancer_has_it_though_its_row_says_nothing() -> None:
    at_two = [EMPTY, slot(2, "10.0.0.1:80")]
    found = plan("b", [Seen(member=member("1"), fresh=True)], at_two)
    assert (found.slots, found.steps) == ({"1": 2}, ())


def test_a_full_kv_cache_halves_the_weight() -> None:
    pressed = Seen(member=member("1", slot=1), fresh=True, pressed=True)
    assert commands(pressed, slots=[slot(1, "10.0.0.1:80")]) == ["set server b/r1 weight 50"]


def test_ready_members_go_before_those_that_start_where_slots_are_few() -> None:
    both = [Seen(member=member("1", STARTING), fresh=True), Seen(member=member("2"), fresh=True)]
    found = plan("b", both, [EMPTY])
    assert (found.slots, found.left_out) == ({"2": 1}, ("1",))


@dataclass
class World:
    """Servers, their rows and HAProxy; a balancer between them that loses what it is told to."""

    clock: FakeClock = field(default_factory=lambda: FakeClock(0.0))
    rows: dict[str, Member] = field(default_factory=dict)
    alive: dict[str, MemberState] = field(default_factory=dict)
    wants: dict[str, int] = field(default_factory=dict)
    """Slots that servers ask for when they join."""
    away: bool = False
    losses: list[str] = field(default_factory=list)
    loses_writes: bool = False
    haproxy: FakeHaproxy = field(default_factory=lambda: FakeHaproxy(4))
    cut: list[str] = field(default_factory=list)

    def read(self) -> list[Member] | None:
        if self.away:
            raise JournalUnavailable("away")
        return list(self.rows.values())

    def write(self, slots: Mapping[str, int], told: Sequence[str]) -> None:
        if self.away or self.loses_writes:
            raise JournalUnavailable("away")
        for owner, number in slots.items():
            self.rows[owner] = replace(self.rows[owner], slot=number)
        for owner in told:
            self.rows[owner] = replace(self.rows[owner], told_ms=1)
            where = self.rows[owner].slot
            (found,) = [each for each in self.haproxy.slots("b") if each.number == where]
            assert (found.drained, found.checked) == (True, False)
            assert found.id not in self.haproxy.homes.values()

    def beat(self) -> None:
        for owner, state in self.alive.items():
            if self.away:
                continue
            old = self.rows.get(owner, member(owner, slot=self.wants.get(owner, NO_SLOT)))
            said = replace(old.presence, state=state)
            now_ms = round(self.clock.now_s * 1000) + 1
            self.rows[owner] = replace(old, presence=said, heartbeat_ms=now_ms)

    def answers(self, address: str) -> bool:
        return any(address == f"10.0.0.{owner}:80" for owner in self.alive)

    def lost(self, command: str) -> str:
        if "state maint" in command:
            name = command.split()[2].rpartition("/r")[2]
            (there,) = [each for each in self.haproxy.slots("b") if each.number == int(name)]
            if there.up and self.answers(there.address):
                self.cut.append(there.address)
        return self.losses.pop() if self.losses else ""

    def pass_time(self, balancer: Balancer, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            self.clock.now_s += 0.25
            self.beat()
            welcoming = [slot for slot in self.haproxy.slots("b") if slot.up and not slot.drained]
            self.haproxy.homes |= {f"k{each.number}": each.id for each in welcoming}
            self.haproxy.check(self.answers)
            balancer.round()
            self.nobody_shares()

    def nobody_shares(self) -> None:
        given = [each.slot for each in self.rows.values() if each.slot != NO_SLOT]
        assert len(given) == len(set(given))


ACTS = st.one_of(
    st.tuples(st.just("start"), st.sampled_from("12345")),
    st.tuples(st.just("start in"), st.sampled_from(["11", "21", "22", "33", "43", "54"])),
    st.tuples(st.just("ready"), st.sampled_from("12345")),
    st.tuples(st.just("drain"), st.sampled_from("12345")),
    st.tuples(st.just("die"), st.sampled_from("12345")),
    st.tuples(st.just("leave"), st.sampled_from("12345")),
    st.tuples(st.just("wait"), st.sampled_from(["0.25", "0.5", "1", "3"])),
    st.tuples(st.just("away"), st.sampled_from(["1", "60"])),
    st.tuples(st.just("lose"), st.sampled_from(["command", "reply", "refused"])),
    st.tuples(st.just("lose writes"), st.just("")),
    st.tuples(st.just("new balancer"), st.just("")),
    st.tuples(st.just("new haproxy"), st.just("")),
)


def balancer_of(world: World, folder: str = "/nonexistent") -> Balancer:
    return Balancer(
        rows=world, carrier=world.haproxy, watch=Watch(2.0),
        homes_file=Path(folder) / "homes", clock=world.clock,
    )  # fmt: skip


def play(world: World, balancer: Balancer, act: str, what: str) -> Balancer:
    match act:
        case "start":
            world.alive.setdefault(what, STARTING)
        case "start in" if what[0] not in world.alive:
            taken = {row.slot for row in world.rows.values()} | set(world.wants.values())
            if int(what[1]) not in taken:  # its keeper has the slot's lock
                world.wants[what[0]] = int(what[1])
            world.alive[what[0]] = STARTING
        case "ready" | "drain" if what in world.alive:
            draining = world.alive[what] is DRAINING
            world.alive[what] = DRAINING if draining or act == "drain" else READY
        case "die":
            world.alive.pop(what, None)
            world.wants.pop(what, None)
        case "leave" if world.alive.pop(what, None) is not None:
            world.wants.pop(what, None)
            if not world.away:
                world.rows.pop(what, None)
        case "wait":
            world.pass_time(balancer, float(what))
        case "away":
            world.away = True
            world.pass_time(balancer, float(what))
            world.away = False
        case "lose":
            world.losses.append(what)
        case "lose writes":
            world.loses_writes = True
            world.pass_time(balancer, 0.5)
            world.loses_writes = False
        case "new balancer":
            return balancer_of(world)
        case "new haproxy":
            world.haproxy = FakeHaproxy(4)
            world.haproxy.loses = world.lost
            return balancer_of(world)
    return balancer


@settings(max_examples=150, deadline=None)
@example([("start", "1"), ("lose writes", ""), ("start in", "21")])
@given(st.lists(ACTS, max_size=25))
def test_after_any_sequence_of_rows_and_lost_replies_slots_are_as_they_should_be(
    acts: list[tuple[str, str]],
) -> None:
    world = World()
    world.haproxy.loses = world.lost
    balancer = balancer_of(world)
    for act, what in acts:
        balancer = play(world, balancer, act, what)
    world.losses.clear()
    world.pass_time(balancer, LEAVING_S + 6.0)
    slots = {each.number: each for each in world.haproxy.slots("b")}
    ready = [owner for owner, state in world.alive.items() if state is READY]
    homes = {owner: world.rows[owner].slot for owner in world.alive}
    for owner in ready:
        found = slots.get(homes[owner])
        if found is None:
            assert len(world.alive) > len(slots)  # more members than slots
            continue
        assert found.address == f"10.0.0.{owner}:80"
        assert (found.checked, found.drained, found.maintained) == (True, False, False)
    for owner, row in world.rows.items():
        if owner not in world.alive:
            assert row.slot == NO_SLOT
    for number, found in slots.items():
        if number not in homes.values():
            assert found.maintained
    for owner, state in world.alive.items():
        if state is DRAINING and homes[owner] != NO_SLOT:
            assert world.rows[owner].told_ms
            assert (slots[homes[owner]].drained, slots[homes[owner]].checked) == (True, False)
    assert not world.cut
