"""Short conversations that a chat template is run over so that its pieces can be found.

Contents are marked, so that they can be told from what the template writes around them, and have
white space at both ends, to see whether a template takes it off.
"""

from dataclasses import replace

from runtime.chat_judge.conversations import (
    Conversation,
    answer,
    call,
    output,
    system,
    thought,
    user,
)
from tools_api.items import Item
from tools_api.tools import FunctionTool


def _marked(mark: str) -> str:
    """Contents with white space around, to see whether a template takes it off."""
    return f"\t {mark} \t"


USER, MORE, ANSWER, SECOND = "Qmarkua", "Qmarkub", "Qmarkaa", "Qmarkab"
SYSTEM, LATER, THOUGHT = "Qmarksa", "Qmarksb", "Qmarkra"
OUTPUTS = ("Qmarkoa", "Qmarkob", "Qmarkoc")
NAMES = ("qtoola", "qtoolb", "qtoolc")
TOOLS = tuple(
    FunctionTool(
        name=name,
        description=f"Describes {name}",
        parameters={
            "type": "object",
            "required": ["qkeya"],
            "properties": {
                "qkeya": {"type": "string", "description": "the first"},
                "qkeyb": {"minimum": 1, "type": "integer", "enum": [10, 11, 12]},
            },
        },
    )
    for name in NAMES
)
CALLS = tuple(
    call(i + 1, name, {"qkeya": f"qvalue{name}", "qkeyb": 10 + i}) for i, name in enumerate(NAMES)
)
_RESULTS = tuple(output(i + 1, _marked(mark)) for i, mark in enumerate(OUTPUTS))


def conversations() -> tuple[Conversation, ...]:
    """The conversations that have to be rendered, by name."""
    one, two = user(_marked(USER)), user(_marked(MORE))
    said, again = answer(_marked(ANSWER)), answer(_marked(SECOND))
    plain: dict[str, tuple[Item, ...]] = {
        "a user": (one,),
        "two users": (one, two),
        "an answer": (one, said),
        "a second user": (one, said, two),
        "a second answer": (one, said, two, again),
        "a later system message": (one, said, system(_marked(LATER))),
    }
    base = [Conversation(name=name, items=items, prompt=False) for name, items in plain.items()]
    base += [
        Conversation(name="a prompt", items=(one,)),
        Conversation(name="a prompt to think", items=(one,), thinking=True),
        Conversation(name="a user, thinking", items=(one,), thinking=True, prompt=False),
        Conversation(
            name="a thought",
            items=(one, thought(THOUGHT), said),
            thinking=True,
            prompt=False,
        ),
        Conversation(name="instructions", instructions=_marked(SYSTEM), items=(one,), prompt=False),
    ]
    with_tools: dict[str, tuple[Item, ...]] = {
        "three tools": (one,),
        "one call": (one, CALLS[0]),
        "two calls": (one, *CALLS[:2]),
        "three calls": (one, *CALLS),
        "a text and a call": (one, said, CALLS[0]),
        "one output": (one, CALLS[0], _RESULTS[0]),
        "two outputs": (one, *CALLS[:2], *_RESULTS[:2]),
        "three outputs": (one, *CALLS, *_RESULTS),
        "an output and a user": (one, CALLS[0], _RESULTS[0], two),
        "an output and an answer": (one, CALLS[0], _RESULTS[0], again),
    }
    base += [
        Conversation(name=name, tools=TOOLS, items=items, prompt=False)
        for name, items in with_tools.items()
    ]
    base += [
        Conversation(name="one tool", tools=TOOLS[:1], items=(one,), prompt=False),
        Conversation(
            name="one output and a prompt", tools=TOOLS, items=(one, CALLS[0], _RESULTS[0])
        ),
    ]
    base += [
        replace(each, name=f"instructions, {each.name}", instructions=_marked(SYSTEM))
        for each in base
        if each.name in ("one tool", "three tools")
    ]
    return tuple(base)
