"""The events of one call of a built-in tool, and the item that it becomes.

A shell call tells its commands while they are written; other calls have no events of their own
in the published protocol. The item of a patch says which kind of change it is from the first
event on, so that it is announced when it is known.

Always true: the texts of a command's deltas are its done text, which is the one in the item.
"""

from collections.abc import Callable, Iterable

from tools_api import events, exact_json
from tools_api.built_in_items import BuiltInCall, written_call
from tools_api.built_in_tools import BuiltIn
from tools_api.events import Event
from tools_api.item_fields import Status
from tools_api.shell_commands import CommandPiece, CommandReader


class BuiltInWriter:
    """Writes one call; not reusable."""

    def __init__(
        self,
        tool: BuiltIn,
        *,
        id_: str,
        call_id: str,
        index: int,
        take_number: Callable[[], int],
        stream_id: str | None,
    ) -> None:
        """
        Args:
            index: of the item in the output.
            take_number: gives the next sequence number.
        """
        self._tool = tool
        self._id = id_
        self._call_id = call_id
        self._index = index
        self._take_number = take_number
        self._stream_id = stream_id
        self._reader = CommandReader() if tool.type == "shell" else None
        self._commands: list[str] = []
        self._pieces: list[str] = []

    def begin(self) -> list[Event]:
        """Announce it, without arguments."""
        if self._tool.type == "apply_patch":
            return []
        return [self._added(self._call("", "in_progress"))]

    def add(self, text: str) -> list[Event]:
        """Write more of the call's arguments."""
        self._pieces.append(text)
        return [] if self._reader is None else self._told(self._reader.feed(text))

    def close(self, status: Status) -> tuple[BuiltInCall, list[Event]]:
        """The finished item, and the events before the one that says so."""
        out = [] if self._reader is None else self._told(self._reader.end())
        text = "".join(self._pieces)
        if self._reader is not None and status == "incomplete":
            text = exact_json.written(_read(text) | {"commands": self._commands})
        call = self._call(text, status)
        if self._tool.type == "apply_patch":
            out.append(self._added(call))
        return call, out

    def _call(self, text: str, status: Status) -> BuiltInCall:
        return written_call(
            self._tool.call_type,
            text,
            call_id=self._call_id,
            execution=self._tool.execution,
            id=self._id,
            status=status,
        )

    def _added(self, call: BuiltInCall) -> Event:
        number, wire = self._take_number(), call.to_wire()
        return events.output_item_added(number, self._index, wire, self._stream_id)

    def _told(self, pieces: Iterable[CommandPiece]) -> list[Event]:
        out = list[Event]()
        for piece in pieces:
            if piece.what == "done":
                self._commands.append(piece.text)
            event = events.shell_command(
                self._take_number(),
                piece.what,
                output_index=self._index,
                command_index=piece.index,
                text=piece.text,
                stream_id=self._stream_id,
            )
            out.append(event)
        return out


def _read(text: str) -> dict[str, object]:
    """The fields that can be read of arguments that were cut short."""
    try:
        found = exact_json.beginning(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
