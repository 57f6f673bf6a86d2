"""Chat Completions: the dialect of ``POST /v1/chat/completions``.

Only puts together what reads a body and what writes the answer to it.
"""

from typing import Any

from tools_api.dialects import chat_completions_answer, chat_completions_request
from tools_api.dialects.chat_completions_answer import CompletionWriter
from tools_api.dialects.dialect import Dialect, DialectRequest
from tools_api.dialects.dialect_fields import a_flag, own_names
from tools_api.errors import ApiError


class _ChatCompletions:
    def read(self, body: Any) -> DialectRequest:
        """Understand a body; see ``Dialect``."""
        with own_names():
            create, fields = chat_completions_request.create_fields(body)
            settings = {
                "usage": chat_completions_request.usage_wanted(fields),
                "logprobs": "include" in create,
            }
            return DialectRequest(
                create=create,
                streamed=a_flag(fields.get("stream"), "stream"),
                writer=self.writer(**settings),
                settings=settings,
            )

    def writer(self, **settings: bool) -> CompletionWriter:
        """See ``Dialect``."""
        return CompletionWriter(**settings)

    def status(self, error: ApiError) -> int:
        """The error's own; see ``Dialect``."""
        return error.status

    def error(self, error: ApiError) -> dict[str, Any]:
        """The body of an error; see ``Dialect``."""
        return chat_completions_answer.error_body(error)

    def error_event(self, error: ApiError) -> bytes:
        """An error in a stream; see ``Dialect``."""
        return chat_completions_answer.error_event(error)


CHAT_COMPLETIONS: Dialect = _ChatCompletions()
