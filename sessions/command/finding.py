"""A finding of ``keepwarm doctor`` about one thing that it looked at."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that ``keepwarm doctor`` looked at, and what it found."""

    what: str
    verdict: Verdict
    found: str
    advice: str = ""
    """The remedy; empty where nothing is."""
