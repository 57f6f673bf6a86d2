"""An answer that is worked out beside the event loop, while its connection waits.

Knows neither what is asked nor who works. Nothing is sent meanwhile: such an answer has no
stream and no heartbeat.

Always true: the exchange gets one answer, or none if its client is gone first.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from sessions.http.exchange import Exchange
from sessions.http.message import HttpResponse, refusal
from tools_api import errors
from tools_api.dialects.dialect import Dialect
from tools_api.dialects.responses_http import RESPONSES
from tools_api.errors import ApiError

log = logging.getLogger(__name__)


class Later:
    """A ``Pending`` that ends with its coroutine."""

    def __init__(
        self,
        exchange: Exchange,
        answer: Coroutine[Any, Any, HttpResponse],
        dialect: Dialect = RESPONSES,
    ) -> None:
        """``answer`` may raise ApiError, which is answered in the words of ``dialect``."""
        self._exchange = exchange
        self._dialect = dialect
        self._task = asyncio.get_running_loop().create_task(self._run(answer))

    def client_gone(self) -> None:
        """Nobody wants to know any more."""
        self._task.cancel()

    def tick(self, now: float) -> None:
        """Nothing happens while it is waited for."""

    async def _run(self, coming: Coroutine[Any, Any, HttpResponse]) -> None:
        try:
            answer = await coming
        except ApiError as error:
            answer = refusal(error, self._dialect)
        except Exception:
            log.exception("answer failed")
            answer = refusal(errors.internal_error(), self._dialect)
        self._exchange.answer(answer)
