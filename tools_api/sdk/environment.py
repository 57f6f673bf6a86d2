"""Settings of a client from the environment: which server it talks to, and with which key.

``KEEPWARM_URL`` and ``KEEPWARM_API_KEY``, the same that ``keepwarm chat`` and ``keepwarm top``
read. What is given in the program goes before them. Other variables named ``KEEPWARM_`` are the
commands'; one of them that looks as if it were meant for a client is told of.
"""

import os
import warnings
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

URL_VARIABLE: Final = "KEEPWARM_URL"
KEY_VARIABLE: Final = "KEEPWARM_API_KEY"
_PREFIX = "KEEPWARM_"
_KNOWN = frozenset(
    {
        *(URL_VARIABLE, KEY_VARIABLE, "KEEPWARM_DEMO_URL", "KEEPWARM_DEMO_API_KEY"),
        "KEEPWARM_COMPACTION_KEY",
    }
)
_MEANS: Mapping[str, frozenset[str]] = {
    URL_VARIABLE: frozenset({"URL", "URI", "BASE", "BASEURL", "ADDRESS", "ENDPOINT", "SERVER"}),
    KEY_VARIABLE: frozenset({"KEY", "APIKEY", "API", "TOKEN", "SECRET"}),
}
"""Words with which no variable of ours ends that is not known here."""
_NEAR = 2
"""Letters that may be wrong."""


def server_of(
    base_url: str | None, environment: Mapping[str, str] = os.environ, *, default: str
) -> tuple[str, str]:
    """The server's address, and what says so: ``base_url`` as it stands, else the variable, else
    ``default``. In the variable the path ``/v1`` may be left out, as for the commands."""
    if base_url is not None:
        return base_url, "base_url"
    url = environment.get(URL_VARIABLE)
    return (with_path(url), URL_VARIABLE) if url else (default, "base_url")


def key_of(api_key: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key to send; an empty ``api_key`` is none, whatever the environment says."""
    return (environment.get(KEY_VARIABLE) if api_key is None else api_key) or None


def check_key(api_key: str | None, label: str) -> None:
    """Refuse what no server can have as a key, and no header can carry.

    Raises:
        ValueError: it has other characters than a key; the message has the label and no key.
    """
    if api_key is None or (api_key.isascii() and api_key.isprintable()):
        return
    at_end = ": a line break at its end?" if api_key != api_key.rstrip() else ""
    raise ValueError(f"{label} has characters that no key has{at_end}")


def with_path(url: str) -> str:
    """An address with its path, which may be left out."""
    parts = urlsplit(url)
    return url if parts.path.strip("/") else urlunsplit(parts._replace(path="/v1"))


def warn_of_strays(environment: Mapping[str, str] = os.environ) -> None:
    """Warn of variables that are not read and look as if they were meant for a client."""
    for name in environment:
        meant = meant_by(name)
        if meant is not None:
            warnings.warn(
                f"the environment variable {name} is unknown and has no effect; is {meant} meant?",
                stacklevel=4,
            )


def meant_by(name: str) -> str | None:
    """Which of the client's variables ``name`` was probably meant to be; None: none of them."""
    if not name.startswith(_PREFIX) or name in _KNOWN:
        return None
    last = name.upper().rpartition("_")[2]
    for variable, means in _MEANS.items():
        if last in means or _distance(name, variable) <= _NEAR:
            return variable
    return None


def _distance(one: str, other: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, start=1):
        above, row[0] = row[0], number
        for at, wanted in enumerate(other, start=1):
            above, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, above + (letter != wanted))
    return row[-1]
