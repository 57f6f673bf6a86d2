"""Checks of a turn's schemas when its output is finished.

A grammar holds a model to most of a schema. Of the rest (``schema_dialect``) the client is
warned, and a finished output that breaks it is found here.

Only what certainly breaks a keyword that the grammar left open is reported.

Knows the items of a response. Knows no grammar and no turn; how a value is judged is said by
``schema_judge``.

Always true: a value that satisfies its schema is never reported, but for one with a name whose
spelling hid from the grammar which pattern it matches.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tools_api import exact_json
from tools_api.items import FunctionCall, Item, Message
from tools_api.name_spellings import NEEDLESS, Spellings, spellings
from tools_api.requests import TextFormat
from tools_api.schema_dialect import rewrite_schema
from tools_api.schema_judge import Judge
from tools_api.schema_references import Schema
from tools_api.tools import FunctionTool

_MAX_PLACE_CHARS = 100
_OF_NAMES = ("properties", "additionalProperties")
_BY_PATTERN = "patternProperties"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A schema that is checked, and what the client calls what it describes."""

    name: str
    schema: Schema
    afterwards: tuple[str, ...]
    ignored: tuple[str, ...]
    names: tuple[str, ...]
    """Keywords that a name's second spelling could break, where it may have one."""

    def warnings(self) -> Iterator[str]:
        if self.afterwards:
            words = ", ".join(self.afterwards)
            yield f"{self.name}: {words}: checked when the output is finished, not enforced."
        if self.ignored:
            yield f"{self.name}: {', '.join(self.ignored)}: neither enforced nor checked."


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChecks:
    """The checks left for one turn's output."""

    text: _Subject | None = None
    tools: tuple[_Subject, ...] = ()

    def warnings(self) -> tuple[str, ...]:
        """A sentence for each schema of which something is not enforced."""
        if self.text is None and not self.tools:
            return ()
        subjects = self.tools if self.text is None else (*self.tools, self.text)
        return tuple(sentence for subject in subjects for sentence in subject.warnings())

    def violation(self, items: Iterable[Item]) -> str | None:
        """The rule that the finished items of a response break, in a sentence; None if nothing."""
        tools = {tool.name: tool for tool in self.tools}
        for item in items:
            found = None
            if isinstance(item, FunctionCall) and item.name in tools:
                found = _violation(tools[item.name], item.arguments)
            elif isinstance(item, Message) and self.text is not None:
                found = _violation(self.text, "".join(part.text for part in item.content))
            if found is not None:
                return found
        return None


def output_checks(
    tools: Sequence[FunctionTool], text_format: TextFormat, *, lenient: bool
) -> OutputChecks:
    """The checks of a turn that may call ``tools`` and answers in ``text_format``."""
    schema = text_format.json_schema if text_format.type == "json_schema" else None
    if schema is None and not tools:
        return OutputChecks()
    text = None if schema is None else _subject("text.format.schema", schema, lenient)
    subjects = (_subject(tool.name, tool.parameters, lenient) for tool in tools)
    return OutputChecks(
        text=text, tools=tuple(subject for subject in subjects if subject is not None)
    )


def _subject(name: str, schema: Schema, lenient: bool) -> _Subject | None:
    found = rewrite_schema(schema, lenient=lenient)
    names: tuple[str, ...] = ()
    if spellings(found.schema) is Spellings.CHECKED:
        names = (
            (*_OF_NAMES, _BY_PATTERN)
            if _BY_PATTERN.encode() in exact_json.dumps(schema)
            else _OF_NAMES
        )
    if not found.afterwards and not found.ignored and not names:
        return None
    return _Subject(
        name=name,
        schema=schema,
        afterwards=found.afterwards,
        ignored=found.ignored,
        names=names,
    )


def _violation(subject: _Subject, text: str) -> str | None:
    try:
        value = exact_json.loads(text)
    except (ValueError, RecursionError):
        return None  # cut, or no JSON: others say so
    if _BY_PATTERN in subject.names and NEEDLESS.search(text):
        return f"{subject.name}: a name beside {_BY_PATTERN} has an escape that it does not need."
    judge = Judge(subject.schema, (*subject.afterwards, *subject.names))
    if judge.verdict(subject.schema, value, ()) is not False or judge.broken is None:
        return None
    keyword, place = judge.broken
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return f"{subject.name}: the output breaks {keyword} at '${where[:_MAX_PLACE_CHARS]}'."
