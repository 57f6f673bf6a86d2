"""Calls as a model writes them, whatever the syntax: what a model's output would hold.

Knows every way of writing calls. Renderers know their own.

Always true: the parser of the same syntax reads what is written as these calls.
"""

from collections.abc import Sequence

from tools_api.chat_format import CallSyntax, JsonCalls, SegmentWriter, call_object
from tools_api.harmony import CHANNEL, COMMENTARY, CONSTRAIN, MESSAGE, NAMESPACE, HarmonyCalls
from tools_api.items import FunctionCall
from tools_api.named_calls import NamedCalls, write_named_calls
from tools_api.python_calls import PythonCalls, write_python_calls
from tools_api.quoted_calls import QuotedCalls, write_quoted_calls
from tools_api.raw_calls import RawCalls, write_raw_calls
from tools_api.sectioned_calls import SectionedCalls, write_sectioned_calls
from tools_api.tagged_calls import TaggedCalls, write_tagged_calls


def write_calls(out: SegmentWriter, syntax: CallSyntax, calls: Sequence[FunctionCall]) -> None:
    """Add the calls of one turn, as far as the syntax lets a turn have them."""
    match syntax:
        case JsonCalls():
            out.calls(syntax, [call_object(call, syntax) for call in calls])
        case RawCalls():
            write_raw_calls(out, syntax, calls)
        case NamedCalls():
            write_named_calls(out, syntax, calls)
        case SectionedCalls():
            write_sectioned_calls(out, syntax, calls)
        case PythonCalls():
            write_python_calls(out, syntax, calls)
        case QuotedCalls():
            write_quoted_calls(out, syntax, calls)
        case TaggedCalls():
            write_tagged_calls(out, syntax, calls)
        case HarmonyCalls():
            for call in calls[:1]:
                out.special(CHANNEL)
                out.text(f"{COMMENTARY} to={NAMESPACE}{call.full_name} ")
                out.special(CONSTRAIN)
                out.text("json")
                out.special(MESSAGE)
                out.text(call.arguments or "{}")
