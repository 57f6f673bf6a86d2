"""Which output answers which call, and where outputs stand.

Most chat formats write no ids: to the model the first output is that of the first call. So outputs
stand in the order of their calls, whichever came first, in the places where outputs came. One that
came after the model had made further calls stands behind the calls it belongs to. What came again
unchanged counts once: an output, or a call that waits for its output. Another output of a call is
what a tool says later: it stays where it came, once the model has spoken since and if it can be of
no other call. Knows items alone, neither tokens nor what is stored.

A run is what the model said without a word of anybody else's between: its messages, reasoning and
calls. An id may be used again for another call once the one before has its output.

Always true: in what comes out the outputs of a run stand behind it, before the next run with
calls, in the order of its calls; what went in so comes out as it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tools_api import errors
from tools_api.built_in_items import AdditionalTools, ConfigurationUpdate
from tools_api.item_identity import normalised
from tools_api.items import Call, CallOutput, Compaction, Item, Message

_NOBODYS = AdditionalTools | ConfigurationUpdate
"""Items that nobody says: the application sends them."""
Where = Callable[[int], str]
"""The path of an item, by its index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Items in the order in which a model reads them."""

    items: tuple[Item, ...]
    repeated: int
    """Calls and outputs that came again and were left out."""

    def warnings(self) -> tuple[str, ...]:
        """Warnings for the client."""
        if not self.repeated:
            return ()
        return (f"input: {self.repeated} of its calls and outputs came twice and count once",)


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    """Items in a row that contain calls."""

    begin: int
    end: int
    """The index behind its last item."""
    calls: "list[_Asked]" = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Where its outputs came, ascending."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Asked:
    """A call and its output."""

    call: Call | None
    run: int | None
    """The number of its run, which has it: neither holds the other for the collector of cyclic
    garbage. None as ``call``: it was made before these items."""
    output: CallOutput | None = None
    newest: CallOutput | None = None
    """The newest output of the same tool."""
    newest_at: int = -1

    @property
    def waits(self) -> bool:
        return self.output is None and self.call is not None and self.call.status != "incomplete"


def by_model(item: Item) -> bool:
    """Whether it is of the model's own saying."""
    return not isinstance(item, CallOutput | Compaction | _NOBODYS) and (
        not isinstance(item, Message) or item.role == "assistant"
    )


def in_call_order(
    items: Sequence[Item], *, complete: bool, where: Where = lambda _: "input"
) -> Ordered:
    """Put outputs in their places.

    Args:
        complete: the model is to go on behind these items.
        where: what an error calls an item's ``call_id``.

    Raises:
        ApiError: a call has two outputs, two calls that wait have one id, or (``complete``) the
            output of a later call would stand in the place of a call that has none.
    """
    reader = _Reader(where)
    for index, item in enumerate(items):
        reader.read(index, item)
    if complete:
        for run in reader.runs:
            _refuse_gaps(run)
    placed: dict[int, Sequence[Item]] = dict.fromkeys(reader.repeated, ())
    nexts = [*(run.begin for run in reader.runs[1:]), len(items)]
    for run, next_begin in zip(reader.runs, nexts, strict=False):
        _place(run, next_begin, items, placed)
    out = tuple(items)
    if placed:
        out = tuple(each for n, item in enumerate(items) for each in placed.get(n, (item,)))
    return Ordered(items=out, repeated=len(reader.repeated))


class _Reader:
    """Takes the items one by one."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._asked: dict[str, _Asked] = {}
        """The newest calls, by their ids."""
        self._began: int | None = None
        """Where the run began that is going on."""
        self._spoken_at = -1
        """Where the model spoke last."""
        self.runs: list[_Run] = []
        self.repeated: list[int] = []

    def read(self, index: int, item: Item) -> None:
        if isinstance(item, Call) and self._came_before(index, item):
            return
        if by_model(item):
            self._speaks(index)
        else:
            self._began = None
        if isinstance(item, Call):
            self._call(index, item)
        elif isinstance(item, CallOutput):
            self._output(index, item)

    def _came_before(self, index: int, call: Call) -> bool:
        """The call waits for its output, and is said again."""
        asked = self._asked.get(call.call_id)
        if asked is None or not asked.waits:
            return False
        assert asked.call is not None
        if normalised(asked.call) != normalised(call):
            raise errors.call_id_taken(self._where(index), call.call_id)
        self.repeated.append(index)
        return True

    def _speaks(self, index: int) -> None:
        self._spoken_at = index
        if self._began is None:
            self._began = index
        elif self.runs and self.runs[-1].begin == self._began:
            self.runs[-1].end = index + 1

    def _call(self, index: int, call: Call) -> None:
        assert self._began is not None
        if not self.runs or self.runs[-1].begin != self._began:
            self.runs.append(_Run(begin=self._began, end=index + 1))
        run = self.runs[-1]
        asked = self._asked[call.call_id] = _Asked(call=call, run=len(self.runs) - 1)
        run.calls.append(asked)

    def _output(self, index: int, output: CallOutput) -> None:
        asked = self._asked.setdefault(output.call_id, _Asked(call=None, run=None))
        if asked.newest is not None and asked.newest.output == output.output:
            self.repeated.append(index)
            return
        if asked.output is None:
            asked.output = output
            if asked.run is not None:
                self.runs[asked.run].places.append(index)
        elif not self._is_told_apart(asked):
            raise errors.second_output(self._where(index), output.call_id)
        asked.newest, asked.newest_at = output, index

    def _is_told_apart(self, asked: _Asked) -> bool:
        """Whether one more output here can be of no other call."""
        if self._spoken_at < asked.newest_at:
            return False
        if not self.runs:
            return asked.run is None
        return asked.run == len(self.runs) - 1 and len(self.runs[-1].calls) == 1


def _refuse_gaps(run: _Run) -> None:
    """A call that was cut short needs no output, unless later ones have theirs."""
    cut: Call | None = None
    for asked in run.calls:
        if asked.output is not None and cut is not None:
            raise errors.missing_call_output(cut.call_id)
        if asked.output is None and not asked.waits:
            cut = asked.call


def _place(
    run: _Run, next_begin: int, items: Sequence[Item], placed: dict[int, Sequence[Item]]
) -> None:
    """Note what stands, instead of the item that came there, where a run's outputs came."""
    outputs = [asked.output for asked in run.calls if asked.output is not None]
    in_time = [place for place in run.places if place < next_begin]
    late = run.places[len(in_time) :]
    if not late and [items[place] for place in in_time] == outputs:
        return
    placed |= dict.fromkeys(late, ())
    placed |= {place: (output,) for place, output in zip(in_time, outputs, strict=False)}
    rest = outputs[len(in_time) :]
    last = in_time[-1] if in_time else run.end - 1
    placed[last] = (*placed.get(last, (items[last],)), *rest)


def with_names(items: Sequence[Item], calls: Iterable[Item]) -> tuple[Item, ...]:
    """The items, outputs with the names of the tools that were called.

    Args:
        calls: among which those that they answer are.
    """
    names = {call.call_id: call.full_name for call in calls if isinstance(call, Call)}
    return tuple(
        replace(item, name=names[item.call_id])
        if isinstance(item, CallOutput) and item.call_id in names
        else item
        for item in items
    )
