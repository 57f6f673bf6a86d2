"""Cursors that clients hand back: where the next page begins, and for which query.

A cursor is sealed (keyed BLAKE2b) with a key that all servers of a journal have, so that it holds
on each of them and over a restart; one that was changed, or belongs to another query or another
tenant's, is refused. What it says is no secret: its reader has just been shown that row.

Always true: what is opened was sealed for the same question under the same key.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Any

import orjson

from tools_api import errors

_SEAL_BYTES = 16


class CursorSeal:
    """Seals and opens cursors."""

    def __init__(self, secret: bytes) -> None:
        """``secret``: up to 64 bytes that no client knows."""
        self._secret = secret

    def sealed(self, question: list[Any], place: list[Any]) -> str:
        """A cursor.

        Args:
            question: all that a client asked, the page aside, who asks included.
            place: the last row that was shown.
        """
        body = orjson.dumps(place)
        text = base64.urlsafe_b64encode(self._seal(question, body) + body)
        return text.rstrip(b"=").decode()

    def opened(self, question: list[Any], cursor: str) -> list[Any]:
        """The place. Raises ApiError: it was changed, or made for another question."""
        try:
            padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
            data = base64.b64decode(padded, altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            data = b""
        seal, body = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal(question, body)):
            raise errors.invalid_value(
                "cursor", "it was changed, or belongs to another query: begin without one"
            )
        place: list[Any] = orjson.loads(body)
        return place

    def _seal(self, question: list[Any], body: bytes) -> bytes:
        asked = orjson.dumps(question)
        state = hashlib.blake2b(key=self._secret, digest_size=_SEAL_BYTES, person=b"cursor")
        state.update(len(asked).to_bytes(8, "big") + asked + body)
        return state.digest()
