"""Facts about this machine that were found out, in small files beside the compiled kernels.

A file belongs to facts: processor, threads, build, model. Its name is a digest of these, and it
says them again inside. What cannot be read, or says that it belongs elsewhere, is named in one line
and counts as nothing.

Always true: a file is replaced whole or not at all; nothing in it makes a start fail.
"""

import hashlib
import json
import logging
import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tools_api.home_folder import home_folder

log = logging.getLogger(__name__)

FORMAT = 1
MOST_BYTES = 1 << 16
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFile:
    """One file and what it has to be about."""

    path: Path
    facts: Mapping[str, str]

    @classmethod
    def of(cls, folder: str | None, kind: str, facts: Mapping[str, str]) -> "MachineFile | None":
        """The file of that kind for ``facts`` in a folder; None: there is no folder."""
        if not folder:
            return None
        digest = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()
        return cls(
            path=Path(os.path.expanduser(folder)) / f"{kind}-{digest[:20]}.json", facts=facts
        )

    def read(self, understand: Callable[[Any], Found]) -> Found | None:
        """The content as ``understand`` makes something of it, raising ValueError, TypeError or
        KeyError where it cannot; None where there is no file, or none that can be used."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(MOST_BYTES + 1)
            return understand(self._content(raw))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            log.warning("%s is not used, it is found out anew: %s", self.path, reason)
            return None

    def write(self, content: Any) -> None:
        """Replace the file; where that fails, one line says so."""
        whole = {"format": FORMAT, "facts": dict(self.facts), "content": content}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".machine-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(whole, file, indent=1)
                Path(name).replace(self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            log.warning("%s cannot be written: %s", self.path, error)

    def _content(self, raw: bytes) -> Any:
        if len(raw) > MOST_BYTES:
            raise ValueError(f"longer than {MOST_BYTES} bytes")
        whole = json.loads(raw)
        if whole["format"] != FORMAT:
            raise ValueError(f"format {whole['format']!r}, not {FORMAT}")
        if whole["facts"] != dict(self.facts):
            names = sorted(
                name
                for name in {*self.facts, *whole["facts"]}
                if self.facts.get(name) != whole["facts"].get(name)
            )
            raise ValueError(f"of another machine or model: {', '.join(names)} differ")
        return whole["content"]


def processor() -> str:
    """Name and features of the CPU, as the system tells them."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [
        next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
        for name in ("model name", "flags", "Features")
    ]
    return " ".join([platform.machine(), *named]).strip()


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where programs keep what they can make again."""
    return Path(environment.get("XDG_CACHE_HOME") or home_folder() / ".cache") / "keepwarm"
