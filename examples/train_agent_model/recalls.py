"""Recalls: rows that ask one thing of schemas many times, and nothing else.

In a session such a choice comes up once in some hundred tokens, often where the question tells as
well; here nothing but the schemas tells. Six minutes of them taught what sessions alone had not
(docs/log/default-model.md).
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from examples.train_agent_model.rendering import Part, arguments_part, chosen_marks, owner_marks
from examples.train_agent_model.world import Recalled, Tool


def recalled_arguments(tools: Sequence[Tool], recalled: Sequence[Recalled]) -> list[Part]:
    """Render the schemas of tools' parameters, then arguments of calls, with no question that tells
    how many there are; this alone is learned, and the names but for the first ones."""
    schemas = (json.dumps(tool.schema(), ensure_ascii=False) for tool in tools)
    parts = [Part(text="\n".join(schemas))]
    for one in recalled:
        said = arguments_part('\n{"arguments": ', one.call, 0.0, is_open=True)
        _, *rest = said.heavy
        parts.append(replace(said, text=said.text + "}}", heavy=tuple(rest)))
    return parts


def recalled_names(tools: Sequence[Tool], recalled: Sequence[Recalled]) -> list[Part]:
    """Render names and descriptions of tools, then questions, each with the name of its tool; the
    names alone are learned."""
    told = ({"name": tool.name, "description": tool.description} for tool in tools)
    text = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in told)
    parts = [Part(text=text, marks=owner_marks(text, tools))]
    for one in recalled:
        before = f'\n{one.text}\n{{"name": "'
        begin = len(before.encode())
        end = begin + len(one.call.name) + 1
        text = f'{before}{one.call.name}", "arguments": '
        marks = chosen_marks(text, tools)
        parts.append(Part(text=text, heavy=((begin, end),), marks=marks))
    return parts
