"""The members' addresses in a file for Prometheus (``file_sd_configs``).

One target a member, with its cluster as a label; the series' ``instance`` is the address. Slots
are no label: they change hands, and a series would break.

Always true: a file that is there is whole, and is written only when it says something else.
"""

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)


class TargetsFile:
    """The file of one cluster."""

    def __init__(self, path: Path, cluster: str) -> None:
        self._path = path
        self._cluster = cluster
        self._written: str | None = None
        self._failed = False

    def write(self, addresses: Iterable[str]) -> None:
        """The members that live. A disk that is full is told once, and tried again."""
        text = targets(self._cluster, addresses)
        if text == self._written:
            return
        new = self._path.with_name(self._path.name + ".new")
        try:
            new.write_text(text)
            os.replace(new, self._path)
        except OSError as error:
            if not self._failed:
                log.warning("targets cannot be written file=%s %s", self._path, error.strerror)
            self._failed = True
        else:
            self._written, self._failed = text, False


def targets(cluster: str, addresses: Iterable[str]) -> str:
    """The text of a file of targets for Prometheus."""
    group = {"targets": sorted(addresses), "labels": {"cluster": cluster}}
    return json.dumps([group], indent=1) + "\n"
