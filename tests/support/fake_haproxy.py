"""HAProxy's slots as a table that commands change, for tests of the balancer without the program.

It does what HAProxy 2.6 was seen to do: a slot that is set ``ready`` from maintenance is up until
its first check fails; a server is checked only outside of maintenance and where checks are enabled.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from cluster.haproxy_socket import CommandRefused, Entry, HaproxyGone
from cluster.membership import Slot

NOWHERE = "127.0.0.1:1"


class FakeHaproxy:
    """As ``HaproxySocket``, and as the carrier that has one."""

    def __init__(self, num_slots: int) -> None:
        self._found = {
            number: Slot(
                number=number, id=number + 100, address=NOWHERE, up=False, maintained=True,
                drained=False, checked=True, weight=100,
            )
            for number in range(1, num_slots + 1)
        }  # fmt: skip
        self.homes: dict[str, int] = {}
        self.done: list[str] = []
        self.loses: Callable[[str], str] = lambda _: ""
        """Of a command: "" nothing, ``command`` that it comes, ``reply`` that its answer does."""
        self.new = False

    @property
    def socket(self) -> "FakeHaproxy":
        return self

    def take(self) -> bool:
        new, self.new = self.new, False
        return new

    def slots(self, backend: str) -> list[Slot]:
        return list(self._found.values())

    def table(self, backend: str) -> list[Entry]:
        return [Entry(key=key, server_id=at) for key, at in self.homes.items()]

    def fill(self, backend: str, entries: Iterable[Entry]) -> None:
        self.homes |= {each.key: each.server_id for each in entries}

    def do(self, command: str) -> None:
        lost = self.loses(command)
        if lost == "refused":
            raise CommandRefused(command)
        if lost != "command":
            self.done.append(command)
            self._obey(command.split())
        if lost:
            raise HaproxyGone("lost")

    def check(self, answers: Callable[[str], bool]) -> None:
        """Have every check made: whether somebody answers at an address."""
        for number, slot in self._found.items():
            if not slot.maintained and slot.checked:
                self._found[number] = replace(slot, up=answers(slot.address))

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["set", "server", name, "state", state]:
                slot = self._slot(name)
                up = state != "maint" and (slot.maintained or slot.up)
                drained, gone = state == "drain", state == "maint"
                self._keep(replace(slot, maintained=gone, drained=drained, up=up))
            case ["set", "server", name, "addr", host, "port", port]:
                self._keep(replace(self._slot(name), address=f"{host}:{port}"))
            case ["set", "server", name, "weight", weight]:
                self._keep(replace(self._slot(name), weight=int(weight)))
            case ["enable" | "disable" as verb, "health", name]:
                self._keep(replace(self._slot(name), checked=verb == "enable"))
            case ["clear", "table", _, "data.server_id", "eq", number]:
                self.homes = {key: at for key, at in self.homes.items() if at != int(number)}
            case _:
                raise AssertionError(words)

    def _slot(self, name: str) -> Slot:
        return self._found[int(name.rpartition("/r")[2])]

    def _keep(self, slot: Slot) -> None:
        self._found[slot.number] = slot
