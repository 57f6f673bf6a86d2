"""Every statement that lets go of what a request holds, and the code without one of them."""

import ast
import inspect
import textwrap
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest

from sessions.durable.branches import Branches
from sessions.durable.reservation import Reservation
from sessions.durable.running_turns import RunningTurns
from sessions.durable.session import Session
from sessions.turns import connection
from sessions.turns.connection import Connection
from sessions.turns.following import Following
from sessions.turns.jobs import Jobs
from sessions.turns.lanes import Lanes
from sessions.turns.playing import Playing
from sessions.turns.running import Running
from sessions.turns.sharing import SharedAccounts
from sessions.turns.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One statement of one function."""

    owner: Any
    function: str
    statement: str
    instead: str = "pass"
    case: tuple[str, str, str]
    """Place, way and company of a case that hangs on it."""

    @property
    def name(self) -> str:
        """For people."""
        where = self.owner.__name__.rpartition(".")[2]
        return f"{where}.{self.function}: {self.statement}"


class _Swap(ast.NodeTransformer):
    """The function with the statement swapped."""

    def __init__(self, release: Release) -> None:
        self._statement = ast.unparse(ast.parse(release.statement))
        self._instead = ast.parse(release.instead).body
        self.found = 0

    def generic_visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.stmt) and ast.unparse(node) == self._statement:
            self.found += 1
            return self._instead
        return super().generic_visit(node)


def left_out(release: Release, patch: pytest.MonkeyPatch) -> None:
    """From now on the code lacks it. AssertionError: there is no such statement."""
    function = inspect.getattr_static(release.owner, release.function)
    assert isinstance(function, FunctionType)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    swap = _Swap(release)
    tree = ast.fix_missing_locations(swap.visit(tree))
    assert swap.found == 1, f"{swap.found} statements are {release.name}"
    made: dict[str, Any] = {}
    exec(compile(tree, f"<without {release.name}>", "exec"), function.__globals__, made)
    patch.setattr(release.owner, release.function, made[release.function])


def _at(case: str, owner: Any, function: str, statement: str, instead: str = "pass") -> Release:
    place, way, company = case.split(" | ")
    return Release(
        owner=owner,
        function=function,
        statement=statement,
        instead=instead,
        case=(place, way, company),
    )


RELEASES: list[Release] = [
    _at("items | gone | alone", Running, "_let_go", "self._service.store.logs.drop(job.log)"),
    _at("items | gone | alone", Running, "_let_go", "self._free(job.log.request_id)"),
    _at(
        "the record of a first turn | failed | alone",
        Running,
        "_let_go",
        "job.frame.hold.release()",
    ),
    _at(
        "the record of a first turn | failed | alone",
        Running,
        "_let_go",
        "self._lanes.done(job.lane)",
    ),
    _at(
        "shares to start with | newer_id_unnoticed | alone",
        Running,
        "_in_session",
        "self._asking.wake(session.withdraw(ticket))",
    ),
    _at(
        "shares to start with | newer_id_unnoticed | alone",
        Running,
        "_in_session",
        "self._asking.wake(session.withdraw(ticket))",
        instead="session.withdraw(ticket)",
    ),
    _at(
        "the record of a first turn | failed | alone",
        Running,
        "_with_shares",
        "commits.shared.done(self._tenant.name, job.shares)",
    ),
    _at(
        "the record of a first turn | failed | alone",
        Running,
        "_run",
        "self._asking.wake(session.end_turn(id_, service.clock(), open_calls=open_calls))",
    ),
    _at(
        "its id | answered | both",
        Running,
        "_run",
        "self._asking.wake(session.end_turn(id_, service.clock(), open_calls=open_calls))",
        instead="session.end_turn(id_, service.clock(), open_calls=open_calls)",
    ),
    _at(
        "the record of a first turn | failed | alone",
        Running,
        "_run",
        "service.store.running.remove(id_)",
    ),
    _at(
        "the record of a first turn | failed | alone",
        Playing,
        "_take",
        "self._jobs.withdrawn(output.request_id)",
    ),
    _at(
        "the engine | newer_gone | alone",
        Running,
        "_record",
        "self.playing.note(job, turn, NOTHING)",
    ),
    _at(
        "shares of no use | answered | alone", Running, "_record", "self._free(job.log.request_id)"
    ),
    _at(
        "the record of a first turn | failed | alone",
        Running,
        "_record",
        "self._service.store.branches.drop(ending.outcome.entry)",
    ),
    _at(
        "the record of a first turn | failed | alone",
        Running,
        "_tell_end",
        "job.log.follower = None",
    ),
    _at(
        "the record of a first turn | failed | alone",
        Running,
        "_tell_end",
        "service.store.logs.close(job.log)",
    ),
    _at(
        "shares to start with | gone, before it was read | alone",
        Running,
        "unwanted",
        "commits.shared.unwanted(self._tenant.name, share)",
    ),
    _at("its id | gone, before it was read | alone", Running, "unwanted", "self._free(id_)"),
    _at(
        "the engine, asked anew | answered | alone",
        Playing,
        "_take",
        "self._jobs.withdrawn(output.request_id)",
    ),
    _at(
        "the engine, asked for less | answered | alone",
        Playing,
        "carry_out",
        "self._jobs.withdrawn(message.request_id)",
    ),
    _at(
        "shares to start with | gone, before it was read | alone",
        Connection,
        "answer",
        "self._running.unwanted(answer)",
    ),
    _at("the engine | newer_id | alone", Running, "overtaken", "self._lanes.done(job.lane)"),
    _at(
        "its record | newer_id_unnoticed | alone",
        Running,
        "_tell_end",
        "self.overtaken(job)",
    ),
    _at("its id | gone | both", Connection, "close", "self._drop_waiting()"),
    _at("the engine | newer_gone | alone", Connection, "close", "self._following.close()"),
    _at("the engine | gone | alone", Connection, "close", "job.log.follower = None"),
    _at(
        "the record of a first turn | failed | alone",
        Connection,
        "_effects",
        "self._out.requests += self._service.store.branches.take_releases()",
    ),
    _at("its id | gone | both", connection, "_let_go", "waiting.hold.release()"),
    _at("the engine | newer_id | alone", Following, "_end", "del self._follows[log]"),
    _at("the engine | newer_id | alone", Following, "_end", "self._lanes.done(lane)"),
    _at("the engine | newer_gone | alone", Following, "close", "log.follower = None"),
    _at("items | gone | alone", Jobs, "end_early", "del self._by_question[question.id]"),
    _at(
        "the engine, asked for less | answered | alone",
        Turn,
        "_leave_engine",
        "self._branches.abandon(self._claim)",
    ),
    _at("the engine | newer_gone | alone", Turn, "_withdraw", "self._reservation.release()"),
    _at("the engine, asked for less | answered | alone", Turn, "_withdraw", "self._leave_engine()"),
    _at("the engine | newer_gone | alone", Turn, "_settle", "self._withdraw()"),
    _at(
        "the record of a first turn | failed | alone",
        Reservation,
        "settle",
        "account.spend(spent, held)",
    ),
    _at(
        "the engine, asked for less | answered | alone",
        Reservation,
        "release",
        "account.held = account.held.minus(held)",
    ),
    _at(
        "shares to start with | gone, before it was read | alone",
        Session,
        "withdraw",
        "self._granted = None",
    ),
    _at(
        "shares to start with | newer_id_unnoticed | alone",
        Session,
        "withdraw",
        "return self._grant_next()",
    ),
    _at(
        "its turn in the session | gone | alone",
        Session,
        "withdraw",
        "self._waiting = _without(self._waiting, ticket)",
    ),
    _at(
        "the record of a first turn | failed | alone",
        Session,
        "end_turn",
        "self._running = _without(self._running, response_id)",
    ),
    _at(
        "the record of a first turn | failed | alone",
        RunningTurns,
        "remove",
        "self._held[tenant] -= 1",
    ),
    _at("the record of a first turn | failed | alone", SharedAccounts, "done", "use.turns -= 1"),
    _at(
        "the record of a first turn | failed | alone",
        SharedAccounts,
        "done",
        "self._idle[key] = rest",
    ),
    _at(
        "shares to start with | gone, before it was read | alone",
        SharedAccounts,
        "unwanted",
        "self._idle[key] = self._idle.get(key, NOTHING).plus(share.amount)",
    ),
    _at(
        "the engine, asked for less | answered | alone",
        Branches,
        "abandon",
        "claim.branch.running = False",
    ),
    _at(
        "a turn to resume | drained_in_vain | both",
        Branches,
        "abandon",
        "self._release_if_unused(claim.branch)",
    ),
    _at(
        "the record of a first turn | failed | alone",
        Branches,
        "drop",
        "self._release_if_unused(place[0])",
    ),
    _at("the record of a first turn | failed | alone", Lanes, "done", "lane.active = False"),
    _at("the record of a first turn | failed | alone", Lanes, "done", "self.num_active -= 1"),
]
