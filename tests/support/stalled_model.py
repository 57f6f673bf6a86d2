"""A model whose loading goes no further until the test says so.

Its ``config.json`` is a named pipe: who reads it waits until somebody has written it.
"""

import os
import time
from pathlib import Path

from runtime.model.sources import DEFAULT_MODEL

_PATIENCE_S = 60.0


class StalledModel:
    """The project's own model in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._config = folder / "config.json"
        for file in DEFAULT_MODEL.iterdir():
            (folder / file.name).symlink_to(file)

    def stall(self) -> None:
        """The next load waits."""
        self._config.unlink()
        os.mkfifo(self._config)

    def loader_waits(self) -> int:
        """Wait until a loader does; what it waits for is to be handed to ``let_go``."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return os.open(self._config, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody has it open
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def let_go(self, pipe: int) -> None:
        """The loader that waits goes on, and others do not stall."""
        self._config.unlink()
        self._config.symlink_to(DEFAULT_MODEL / "config.json")
        try:
            os.write(pipe, self._config.read_bytes())
        finally:
            os.close(pipe)
