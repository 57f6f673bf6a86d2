"""API keys and the tenants they belong to.

A tenant is the border of everything that is shared: prefix cache, stored responses,
sessions, the dashboard's rows. It follows from the key alone, never from what a client
writes in a message. Without any key everyone is the same tenant and an operator.

Always true: telling whether a key is right takes the same time for every wrong key.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DEFAULT_TENANT = "default"
MIN_KEY_CHARS = 8

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_KEY = re.compile(r"[!-~]+")


class KeyFileError(ValueError):
    """The keys cannot be used. The message says which line and why, never the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks, as far as the key tells."""

    tenant: str
    operator: bool
    """May see what concerns the whole server: metrics, all tenants' sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    key: str
    principal: Principal

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key) or len(self.key) < MIN_KEY_CHARS:
            raise KeyFileError(
                f"a key must be {MIN_KEY_CHARS} or more printable ASCII characters without spaces"
            )
        if not _NAME.fullmatch(self.principal.tenant):
            raise KeyFileError(
                f"tenant {self.principal.tenant!r} is not 1 to 64 of A-Z a-z 0-9 _ . -"
            )


class Tenants:
    """Finds the principal of a key."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._principals = [(_digest(key.key), key.principal) for key in keys]

    @property
    def open(self) -> bool:
        """No key is configured: everyone who reaches the port is let in."""
        return not self._principals

    def authenticate(self, key: str | None) -> Principal | None:
        """The principal of ``key``; None if it is wrong, or missing where one is needed."""
        if self.open:
            return Principal(tenant=DEFAULT_TENANT, operator=True)
        offered = _digest(key or "")
        found = None
        for digest, principal in self._principals:  # all of them: a hit must not be faster
            if hmac.compare_digest(digest, offered):
                found = principal
        return found


def single_key(key: str) -> ApiKey:
    """One key for everything: its holder is tenant and operator."""
    return ApiKey(key=key, principal=Principal(tenant=DEFAULT_TENANT, operator=True))


def read_keys_file(path: Path) -> list[ApiKey]:
    """Read ``tenant key [operator]`` per line; blank lines and lines that start with ``#``
    are skipped.

    Raises:
        KeyFileError: the file cannot be read, a line has another form, a key stands twice,
            or there is no key at all.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"cannot read {path}: {error}") from error
    keys: list[ApiKey] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            key = _parse(words)
        except KeyFileError as error:
            raise KeyFileError(f"{path}, line {number}: {error}") from None
        if any(key.key == other.key for other in keys):
            raise KeyFileError(f"{path}, line {number}: this key stands in the file twice")
        keys.append(key)
    if not keys:
        raise KeyFileError(f"{path} holds no key")
    return keys


def _parse(words: list[str]) -> ApiKey:
    if len(words) not in {2, 3} or words[2:] not in ([], ["operator"]):
        raise KeyFileError("expected 'tenant key' or 'tenant key operator'")
    return ApiKey(key=words[1], principal=Principal(tenant=words[0], operator=len(words) == 3))


def _digest(key: str) -> bytes:
    # Equal lengths, so that compare_digest does not tell the length of a key.
    return hashlib.sha256(key.encode()).digest()
