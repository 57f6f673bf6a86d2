"""Anthropic's Messages: the dialect of ``POST /v1/messages`` and of ``.../count_tokens``.

Only puts together what reads a body and what writes the answer to it.
"""

from typing import Any

from tools_api.dialects import anthropic_messages_answer, anthropic_messages_request
from tools_api.dialects.anthropic_messages_answer import MessageWriter
from tools_api.dialects.dialect import Dialect, DialectRequest
from tools_api.dialects.dialect_fields import a_flag, own_names
from tools_api.errors import ApiError


class _Messages:
    def read(self, body: Any) -> DialectRequest:
        """Understand a body; see ``Dialect``."""
        with own_names():
            create, fields = anthropic_messages_request.create_fields(body)
            settings = {
                "thinking_shown": anthropic_messages_request.thinking_shown(fields),
                "generates": "generate" not in create,
                "edits": anthropic_messages_request.edits_asked(fields),
            }
            return DialectRequest(
                create=create,
                streamed=a_flag(fields.get("stream"), "stream"),
                writer=self.writer(**settings),
                settings=settings,
            )

    def writer(self, **settings: bool) -> MessageWriter:
        """See ``Dialect``."""
        return MessageWriter(**settings)

    def status(self, error: ApiError) -> int:
        """See ``Dialect``."""
        return anthropic_messages_answer.error_status(error)

    def error(self, error: ApiError) -> dict[str, Any]:
        """The body of an error; see ``Dialect``."""
        return anthropic_messages_answer.error_body(error)

    def error_event(self, error: ApiError) -> bytes:
        """An error in a stream; see ``Dialect``."""
        return anthropic_messages_answer.error_event(error)


MESSAGES: Dialect = _Messages()


def count_tokens(body: Any) -> dict[str, Any]:
    """The fields of the ``response.create`` whose input tokens the body wants counted, its
    ``type`` left out; nothing in it asks for an answer.

    Raises:
        ApiError: it cannot be served; names the field as this API calls it.
    """
    with own_names():
        return anthropic_messages_request.counted_fields(body)


def token_count(tokens: int) -> dict[str, Any]:
    """The answer of ``POST /v1/messages/count_tokens``."""
    return {"input_tokens": tokens}
