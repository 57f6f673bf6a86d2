"""Keys under which a turn's usage is counted: whose API key, which model, labels and tools.

Always true: labels are sorted by name and name each once; text in here can be kept by every store.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""
OTHER = "\n"
"""Stands for the values of a kind beyond the most that are told apart; no value is like it."""
NONE = ""
"""The value under which usage without any is counted."""
MAX_VALUE_CHARS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageKeys:
    """The keys under which one turn's usage is counted."""

    key: str = NONE
    """Name of the API key that asked for it."""
    model: str = NONE
    """The model's name, as the client called it."""
    labels: Labels = ()
    """Labels of its session, as they were."""
    tools: tuple[str, ...] = ()
    """Tools whose outputs it read, one for each call, in their order."""

    def without_tools(self) -> "UsageKeys":
        """The keys under which charges beside a turn are counted."""
        if not self.tools:
            return self
        return UsageKeys(key=self.key, model=self.model, labels=self.labels)


NO_KEYS = UsageKeys()


def sorted_labels(labels: Mapping[str, str]) -> Labels:
    """As ``UsageKeys`` has them."""
    return tuple(sorted(labels.items()))


def kept_value(text: str) -> str:
    """The text as usage is counted under it; ``OTHER`` for what no store keeps, or nobody reads."""
    if len(text) <= MAX_VALUE_CHARS and text.isprintable():
        return text
    return OTHER


def kept_values(texts: Iterable[str]) -> tuple[str, ...]:
    """The labels' values, each as ``kept_value`` has it."""
    return tuple(map(kept_value, texts))
