"""The search for deferred tools that the server runs: words, or a pattern, to tools.

Names, descriptions and names of arguments are looked at, those of a namespace with each of its
tools. Words are weighed as BM25 does (Robertson and Zaragoza 2009, section 3): rare ones more,
and a name's as much as ``_NAME_WEIGHT`` others. A pattern is read for its literal parts, in their
order and whatever their case; what else it has matches anything, so that a model's expression
costs no more than its length.

Always true: the same tools and the same question give the same tools, in the same order.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tools_api.tools import FunctionTool

MOST_FOUND = 5
_NAME_WEIGHT = 4
_SATURATION, _LENGTH = 1.2, 0.75
"""BM25's k1 and b."""
_WORD = re.compile(r"[a-z]+|[0-9]+|[^\W\d_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MOST_CHARS = 4096
"""Of a tool's texts that are looked at, and of a question."""
_OPTIONAL = r"(?:[?*]|\{0?,[0-9]*\})"
_CLASSES = re.compile(r"\\[A-Za-z0-9]|\[(?:\\.|[^\]\\])*\]|\(\?[^)]*\)")
_GAPS = re.compile(r"\{[0-9,]*\}|[.^$*+?()\[\]{}\\]")


def search(tools: Sequence[FunctionTool], arguments: dict[str, Any]) -> tuple[FunctionTool, ...]:
    """The tools that a call of the search finds, the best first, at most ``MOST_FOUND``.

    Args:
        tools: those that are deferred and were not brought yet.
        arguments: ``query``: words; or ``pattern``: a regular expression.
    """
    pattern = arguments.get("pattern")
    if isinstance(pattern, str):
        asked = pattern[:_MOST_CHARS]
        return tuple(tool for tool in tools if _matches(asked, tool))[:MOST_FOUND]
    query = arguments.get("query")
    return _by_words(tools, query[:_MOST_CHARS] if isinstance(query, str) else "")


def _by_words(tools: Sequence[FunctionTool], query: str) -> tuple[FunctionTool, ...]:
    wanted = set(_words(query))
    counts = [_counts(tool) for tool in tools]
    lengths = [sum(count.values()) for count in counts]
    mean = sum(lengths) / len(lengths) if lengths else 1.0
    weights = {}
    for word in wanted:
        having = sum(word in count for count in counts)
        weights[word] = math.log(1 + (len(tools) - having + 0.5) / (having + 0.5))
    scores = []
    for place, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        norm = _SATURATION * (1 - _LENGTH + _LENGTH * length / (mean or 1.0))
        score = sum(
            weights[word] * count[word] * (_SATURATION + 1) / (count[word] + norm)
            for word in sorted(wanted)
            if word in count
        )
        scores.append((-score, place))
    return tuple(tools[place] for score, place in sorted(scores)[:MOST_FOUND] if score < 0)


def _counts(tool: FunctionTool) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word in _words(tool.name):
        counts[word] += _NAME_WEIGHT
    counts.update(_words(_said(tool)))
    return counts


def _words(text: str) -> list[str]:
    """Words without their case; ``getUserName`` and ``get_user_name`` are three."""
    return [_stem(word) for word in _WORD.findall(_HUMP.sub(" ", text).lower())]


def _stem(word: str) -> str:
    """A plural as the singular."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _said(tool: FunctionTool) -> str:
    """The words of a tool that a search looks at."""
    properties = tool.parameters.get("properties")
    names = [str(name) for name in properties] if isinstance(properties, dict) else []
    space = "" if tool.namespace is None else tool.namespace.description
    return " ".join([tool.description or "", space, *names])[:_MOST_CHARS]


def _matches(pattern: str, tool: FunctionTool) -> bool:
    text = f"{tool.name} {_said(tool)}".lower()
    return any(_in_order(way, text) for way in re.split(r"(?<!\\)\|", pattern.lower()))


def _in_order(way: str, text: str) -> bool:
    """Whether the literal parts of one alternative stand in ``text`` one behind the other."""
    at = 0
    parts = _literals(way)
    for part in parts:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return bool(way)


def _literals(way: str) -> list[str]:
    """The parts of a pattern that stand for themselves; one that may be missing is none."""
    held = re.sub(r"\\([^\w])", lambda found: f"\0{ord(found[1]):04x}", way)
    held = _CLASSES.sub(".", held)
    for optional in (rf"\([^()]*\){_OPTIONAL}", rf"(?:\0[0-9a-f]{{4}}|[^\0]){_OPTIONAL}"):
        held = re.sub(optional, ".", held)
    parts = [part for part in _GAPS.split(held) if part]
    return [re.sub("\0([0-9a-f]{4})", lambda f: chr(int(f[1], 16)), part) for part in parts]
