"""What ``keepwarm doctor`` says of one thing that it looked at."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    advice: str = ""
    """What to do; empty where nothing is."""
