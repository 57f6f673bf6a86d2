"""Failures on a client's side; each keeps what had been done until then.

Always true: after any of these the session stands where its last whole turn left it, every
call that it has open is answered with its next turn, and it may be used.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tools_api.errors import ApiError
from tools_api.sdk.answers import LoopResult, Response

PUBLIC: Final = "keepwarm"
"""Where these stand for whoever catches them; a traceback names them so."""


class Refused(ApiError):
    """The server refused a request before it started; ``code`` says why. Users know it as the
    ApiError that it is."""

    __module__ = PUBLIC

    result: LoopResult[Any] | None = None
    """The run's work so far; None outside a run."""
    retry_after_s: float | None = None
    """How long the server asked to be left alone; None if it did not."""


Refused.__name__ = Refused.__qualname__ = "ApiError"


class ConnectionLost(Exception):
    """The server could not be reached, broke off, or stayed silent too long, however often it
    was tried.

    The same call may be made again. ``started`` says whether the server had begun the turn.
    """

    __module__ = PUBLIC

    result: LoopResult[Any] | None = None
    """The run's work so far, the text of its last turn with it; None outside a run."""

    def __init__(
        self,
        reason: str,
        *,
        started: bool,
        close_code: int | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(reason)
        self.started = started
        self.close_code = close_code
        self.final = final
        """Trying again would not help: the address never answered, or the turn is silent."""


class TurnFailed(Exception):
    """The response ended ``failed``. The session stands where it stood."""

    __module__ = PUBLIC

    result: LoopResult[Any] | None = None
    """The run's work so far; None outside a run."""

    def __init__(self, response: Response) -> None:
        error: Mapping[str, Any] = response.raw.get("error") or {}
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.response = response
        self.code: str | None = error.get("code")
        """``rate_limit_exceeded`` when the session's budget is spent."""
        self.reason: str | None = response.keepwarm.get("reason")
        """Our own word for it, ``output_invalid`` for one; None elsewhere."""


class TooManyTurns(Exception):
    """The last turn allowed still has calls. They were not run; the next input says so."""

    __module__ = PUBLIC

    def __init__(self, result: LoopResult[Any]) -> None:
        super().__init__(f"the model still calls tools after {len(result.responses)} turns")
        self.result = result


class OutputInvalid(Exception):
    """No answer was an ``output_type``, though the model was asked again."""

    __module__ = PUBLIC

    def __init__(self, result: LoopResult[Any], faults: Sequence[str]) -> None:
        super().__init__(f"the answer does not fit: {'; '.join(faults)}")
        self.result = result
        self.faults = tuple(faults)


class HookEnded(Exception):
    """A hook of the session refused a turn, raised, or took too long; ``hook`` is its name."""

    __module__ = PUBLIC

    result: LoopResult[Any] | None = None
    """The run's work so far; None outside a run."""

    def __init__(self, hook: str, reason: str) -> None:
        super().__init__(f"the hook {hook} ended the run: {reason}")
        self.hook = hook
        """``before_turn``, ``after_turn``, ``before_tool`` or ``after_tool``."""
        self.reason = reason


RunError = Refused | ConnectionLost | TurnFailed | TooManyTurns | OutputInvalid | HookEnded
"""The errors of a run; ``result`` is what it had done."""
