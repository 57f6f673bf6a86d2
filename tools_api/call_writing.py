"""Calls written in any syntax, and the syntaxes by the names of their formats.

Knows every kind of ``CallSyntax`` that has a writer. Rendering of whole turns is
``tools_api.chat_format``'s.
"""

from collections.abc import Callable, Sequence

from tools_api.chat_families import chat_format_named
from tools_api.chat_format import CallSyntax, JsonCalls, SegmentWriter, call_object
from tools_api.items import FunctionCall
from tools_api.named_calls import NamedCalls, write_named_calls
from tools_api.raw_calls import RawCalls, write_raw_calls


def syntax_named(name: str, has_token: Callable[[str], bool]) -> CallSyntax:
    """The call syntax of the format of that name.

    Raises:
        LookupError: there is no such format.
        ValueError: the tokenizer lacks its special tokens, or it has no calls.
    """
    syntax = chat_format_named(name, has_token).calls
    if syntax is None:
        raise ValueError(f"chat format {name} has no calls with this tokenizer")
    return syntax


def write_calls(out: SegmentWriter, syntax: CallSyntax, calls: Sequence[FunctionCall]) -> None:
    """Add the calls of one turn.

    Raises:
        TypeError: calls of this syntax are not written apart from their format.
    """
    match syntax:
        case JsonCalls():
            out.calls(syntax, [call_object(call, syntax) for call in calls])
        case RawCalls():
            write_raw_calls(out, syntax, calls)
        case NamedCalls():
            write_named_calls(out, syntax, calls)
        case _:
            raise TypeError(f"no writer for {type(syntax).__name__}")
