"""The events of turns, kept so that a client that lost its socket gets what it missed.

Every turn that others than its own connection may see has a log, and so has every turn with a
request id, which is unique in its tenant: sent again, it leads to the log and starts nothing. A
log keeps its events until the client continues the turn or some time has passed, within a bound
on bytes; from then on only the last event is left. Knows neither sockets nor what events say.

Always true: event n of a turn is kept under number n or not at all; the last event is kept as
long as the log, unless its response is deleted; a request id leads to one log.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sessions.durable.packing import pack, unpack
from tools_api.events import number_of, relaned
from tools_api.limits import Limits

_RECORD_BYTES = 512
"""The size of a log beside its events."""


@dataclass(slots=True, eq=False, kw_only=True)
class EventLog:
    """One turn's events and who follows them. Changed by ``EventLogs`` and connections."""

    tenant: str
    owner: str
    """The connection that runs the turn, or is about to."""
    request_id: str | None = None
    body_digest: bytes = b""
    """Digest of the request that bears the id."""
    response_id: str | None = None
    """The id of the turn's response; None until the turn has started."""
    listed: bool = True
    """Found by its response id; a private turn only by its request id."""
    follower: object = None
    """The job that gets the events as they come; None: nobody, the client is gone."""
    followed_on: str = ""
    """The connection of ``follower``."""
    asked_s: float = 0.0
    """When the request of ``follower`` came in."""
    frames: deque[bytes] = field(default_factory=deque)
    first: int = 0
    """Number of the oldest event that is kept."""
    num_bytes: int = _RECORD_BYTES
    packed: bytes = b""
    """The last event, as ``packing`` keeps it, once it is all that is left."""
    ended_s: float | None = None
    recorded: bool = False
    """A journal has it, and knows whether it was deleted at another server or by a command."""
    deleted: bool = False
    """The response was deleted: no event is kept, and the request id stays used."""

    @property
    def ended(self) -> bool:
        """Whether the turn's terminal event is there."""
        return self.ended_s is not None

    @property
    def end(self) -> int:
        """Number of the next event."""
        return self.first + len(self.frames) + bool(self.packed)

    def events_from(self, number: int) -> list[bytes]:
        """Events from that number on. If some of them are gone: the last one alone once the
        turn has ended, none before."""
        if number >= self.end:
            return []
        if self.packed:
            return [unpack(self.packed)]
        if number >= self.first:
            return [self.frames[i] for i in range(number - self.first, len(self.frames))]
        return [self.frames[-1]] if self.ended else []


@dataclass(slots=True, eq=False, kw_only=True)
class Follow:
    """A client that came back to a turn: which events it still has to get, and in which lane."""

    log: EventLog
    stream_id: str | None
    next_number: int

    def new_frames(self) -> list[bytes]:
        """The events that have come since the last call, as frames of the follower's lane."""
        log = self.log
        frames = log.events_from(self.next_number)
        if frames:
            self.next_number = log.end
        return [relaned(frame, self.stream_id) for frame in frames]


class EventLogs:
    """The logs of all tenants; only the event loop touches them."""

    def __init__(self, *, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self.lasting = False
        """Logs dropped here are in a journal, and come back by ``adopt``."""
        self._by_request: dict[tuple[str, str], EventLog] = {}
        self._by_response: dict[str, EventLog] = {}
        self._ended: dict[str, OrderedDict[EventLog, None]] = {}
        """The ended logs of each tenant, oldest end first."""
        self._whole: dict[str, OrderedDict[EventLog, None]] = {}
        """The ended logs that still have more than their last event."""
        self._bytes: dict[str, int] = {}
        """The bytes of each tenant's ended logs."""
        self._running_bytes = 0
        """Bytes of logs whose turns have started and not ended."""

    @property
    def num_bytes(self) -> int:
        """Memory of all logs, those of turns that run included."""
        return sum(self._bytes.values()) + self._running_bytes

    def __len__(self) -> int:
        """Logs of turns that have started."""
        return len(self._by_response)

    def __iter__(self) -> Iterator[EventLog]:
        """Every log, those of requests whose turn has not started included."""
        return iter({*self._by_request.values(), *self._by_response.values()})

    def of_request(self, tenant: str, request_id: str) -> EventLog | None:
        """The log that this request id leads to, started or not."""
        return self._by_request.get((tenant, request_id))

    def of_response(self, tenant: str, response_id: str) -> EventLog | None:
        """The log of that response, if the tenant may see it."""
        log = self._by_response.get(response_id)
        return log if log is not None and log.tenant == tenant and log.listed else None

    def reserve(self, log: EventLog) -> None:
        """A request with an id is taken up: the id leads here from now on."""
        assert log.request_id is not None
        self._by_request[log.tenant, log.request_id] = log

    def start(self, log: EventLog, response_id: str, *, listed: bool) -> None:
        """The log's turn starts, with event 0 to come."""
        log.response_id, log.listed = response_id, listed
        self._by_response[response_id] = log
        self._running_bytes += log.num_bytes

    def adopt(self, log: EventLog, response_id: str, last: bytes) -> None:
        """Take in a turn that ended before this server knew it: its last event is there, unless
        it was deleted. One that is known already stays as it is."""
        if response_id in self._by_response:
            return
        if log.request_id is not None:
            if self.of_request(log.tenant, log.request_id) is not None:
                return
            self.reserve(log)
        self.start(log, response_id, listed=not log.deleted)
        if not log.deleted:
            log.first = number_of(last)
            self.append(log, [last])
        self.close(log)

    def append(self, log: EventLog, frames: Sequence[bytes]) -> None:
        """Keep the turn's next events; the oldest go where they are too many bytes."""
        # Copies of their own size: what encoded a frame made room for several thousand bytes.
        before = log.num_bytes
        for frame in frames:
            log.frames.append(bytes(memoryview(frame)))
            log.num_bytes += len(frame)
        while log.num_bytes > self._limits.max_resume_bytes_per_turn and len(log.frames) > 1:
            log.num_bytes -= len(log.frames.popleft())
            log.first += 1
        if log.response_id is not None:
            self._running_bytes += log.num_bytes - before

    def close(self, log: EventLog) -> None:
        """The turn's last event has been appended."""
        log.ended_s = self._clock()
        self._ended.setdefault(log.tenant, OrderedDict())[log] = None
        whole = self._whole.setdefault(log.tenant, OrderedDict())
        if not log.deleted:
            whole[log] = None
        self._running_bytes -= log.num_bytes if log.response_id is not None else 0
        self._count(log.tenant, log.num_bytes)
        self._bound(log.tenant)

    def continued(self, tenant: str, response_id: str) -> None:
        """The client goes on from that response, so it has all of it: its last event stays only
        where a request id may still ask for it."""
        log = self.of_response(tenant, response_id)
        if log is None or not log.ended:
            return
        if log.request_id is None or self.lasting:
            self._drop(log)
        else:
            self._shorten(log)

    def delete(self, log: EventLog) -> None:
        """The turn's response was deleted: its events go at once; a request id that led to them
        goes on to say so, as long as it would have led to them."""
        if log not in self._ended.get(log.tenant, {}):
            return  # it runs, or has gone already
        if log.request_id is None:
            self._drop(log)
            return
        self._whole[log.tenant].pop(log, None)
        self._count(log.tenant, _RECORD_BYTES - log.num_bytes)
        log.frames, log.packed, log.num_bytes = deque(), b"", _RECORD_BYTES
        log.listed, log.deleted = False, True

    def drop(self, log: EventLog) -> None:
        """The request was not started: its id is free again."""
        if log.request_id is not None and self.of_request(log.tenant, log.request_id) is log:
            del self._by_request[log.tenant, log.request_id]

    def expire(self) -> None:
        """Shorten and drop what is older than its time."""
        now = self._clock()
        shorten_s, drop_s = self._limits.resume_s, self._limits.stored_response_ttl_s
        for tenant in list(self._ended):
            for log in _ended_before(self._whole[tenant], now - shorten_s):
                if self.lasting:
                    self._drop(log)
                else:
                    self._shorten(log)
            for log in _ended_before(self._ended.get(tenant, {}), now - drop_s):
                self._drop(log)

    def _bound(self, tenant: str) -> None:
        """Hold the tenant's ended logs to their bytes and their number, oldest first; the newest
        keeps its events."""
        logs, whole, limits = self._ended[tenant], self._whole[tenant], self._limits
        while self._bytes[tenant] > limits.max_resume_bytes_per_tenant and len(whole) > 1:
            self._shorten(next(iter(whole)))
        while logs and (
            len(logs) > limits.max_stored_responses_per_tenant
            or self._bytes[tenant] > limits.max_resume_bytes_per_tenant
        ):
            self._drop(next(iter(logs)))

    def _shorten(self, log: EventLog) -> None:
        """Keep the last event alone."""
        if log.packed or not log.frames:
            return
        self._whole[log.tenant].pop(log, None)
        before = log.num_bytes
        log.first += len(log.frames) - 1
        log.packed = pack(log.frames[-1])
        log.frames = deque()
        log.num_bytes = _RECORD_BYTES + len(log.packed)
        self._count(log.tenant, log.num_bytes - before)

    def _drop(self, log: EventLog) -> None:
        self.drop(log)
        if log.response_id is not None:
            self._by_response.pop(log.response_id, None)
        logs, whole = self._ended[log.tenant], self._whole[log.tenant]
        del logs[log]
        whole.pop(log, None)
        self._count(log.tenant, -log.num_bytes)
        if not logs:
            del self._ended[log.tenant], self._whole[log.tenant]

    def _count(self, tenant: str, num_bytes: int) -> None:
        self._bytes[tenant] = self._bytes.get(tenant, 0) + num_bytes


def _ended_before(logs: Iterable[EventLog], oldest_s: float) -> list[EventLog]:
    """The first of ``logs``, as far as they ended before that time."""
    return list(itertools.takewhile(lambda log: (log.ended_s or 0.0) < oldest_s, logs))
