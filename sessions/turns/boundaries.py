"""Where an output may end that somebody wants to interrupt, to the token.

Tokens are read one by one there, and none behind the boundary. Knows neither who interrupts nor
why.

Always true: a boundary is never inside a call: one that has begun is read to its end.
"""

from dataclasses import replace

from runtime.messages import SequenceOutput
from sessions.turns.output_reader import OutputReader
from sessions.turns.response_events import ResponseEvents
from sessions.turns.submissions import Boundary
from tools_api.events import Event


def is_boundary(how: Boundary, reader: OutputReader, events: ResponseEvents) -> bool:
    """Whether the output may end behind what was read."""
    if reader.inside_call:
        return False
    return how == "now" or (bool(events.items) and not events.is_open)


def read_to_boundary(
    how: Boundary,
    output: SequenceOutput,
    reader: OutputReader,
    events: ResponseEvents,
    *,
    stopped: bool,
) -> tuple[SequenceOutput, list[Event]]:
    """Read a step's tokens up to a boundary.

    Args:
        stopped: the last of them completes a stop string.

    Returns:
        the part that was read, the same object where that is all of it, and its events.
    """
    told: list[Event] = []
    logprobs = list(output.logprobs)
    last = len(output.new_tokens) - 1
    for place, token in enumerate(map(int, output.new_tokens)):
        if is_boundary(how, reader, events) or _ends_text(token, reader, events):
            return _first(output, place), told
        own = logprobs[:1] if logprobs and logprobs[0].token == token else []
        del logprobs[: len(own)]
        told += events.write(reader.read((token,), own, stopped=stopped and place == last))
    ends_so = output.finish is not None  # by itself, which is as good
    if ends_so or not is_boundary(how, reader, events):
        return output, told
    return _first(output, last + 1), told


def _ends_text(token: int, reader: OutputReader, events: ResponseEvents) -> bool:
    """A message ends before the token that opens something else."""
    return events.is_open and not reader.inside_call and reader.opens(token)


def _first(output: SequenceOutput, count: int) -> SequenceOutput:
    """The first tokens of a step; another object, however many."""
    forced = min(output.forced, count)
    return replace(output, new_tokens=output.new_tokens[:count], forced=forced)
