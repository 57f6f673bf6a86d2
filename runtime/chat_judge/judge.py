"""Which chat format a model folder's own template says: one of ours, or its pieces.

The template runs in a process of its own over all conversations at once. The first renderer of
ours that writes every probe as the template does, but for the differences listed in
``runtime.chat_judge.differences``, is the model's; where none does, turns are put together from the
template's pieces, if these write every probe.

Always true: what is chosen writes every probe as the template does; a refusal names the probe, the
place and both texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.chat_judge.conversations import Conversation, Wants, probes, variables
from runtime.chat_judge.differences import Differing, differing, is_compared, may_be_refused
from runtime.chat_judge.literals import Literals
from runtime.chat_judge.pieces import Found, Unfit, pieces_of
from runtime.chat_judge.response_template import told_calls
from runtime.chat_judge.short_conversations import conversations
from runtime.chat_judge.template_runs import (
    Rendering,
    TemplateLimits,
    TemplateRefused,
    run_template,
)
from tools_api.chat_families import chat_format_named, chat_format_names
from tools_api.chat_format import ChatFormat
from tools_api.chat_generic import GENERIC, GenericFormat, Learned, described

_LONGEST_DESCRIPTION = 48_000
"""Bytes: it is an argument of other processes, and has to fit into the file that keeps it."""


class Refused(Exception):
    """No format agrees with the template. The message is one line for whoever has the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The format that a template says."""

    description: str
    """As ``tools_api.chat_generic.chat_format_described`` reads it."""
    how: str
    """What was compared, in words."""
    no_tools: str = ""
    """Why requests with tools are refused, where they are."""


def judge(
    template: str,
    special_tokens: Mapping[str, str],
    specials: Sequence[str],
    limits: TemplateLimits | None = None,
    *,
    response_template: Any = None,
) -> Judgement:
    """Find the format that a template says.

    Args:
        special_tokens: ``bos_token`` and others that templates name.
        specials: every special token of the tokenizer.
        response_template: what the folder says beside it of how outputs are read, as parsed.

    Raises:
        Refused: there is none.
    """
    literals = Literals(specials)
    tried = (*probes(), *conversations())
    try:
        rendered = _rendered(template, tried, special_tokens, limits)
    except TemplateRefused as refused:
        raise Refused(f"the chat template {refused}") from None
    cut = len(probes())
    made = list(zip(tried, rendered, strict=True))
    of_probes = made[:cut]
    nearest: tuple[float, str, str] | None = None
    for name, chat_format in _candidates(literals):
        agreed, against = _compared(of_probes, name, chat_format)
        if against is None:
            how = f"the chat template writes {cut} conversations as {name} does"
            return Judgement(description=name, how=how)
        if nearest is None or agreed > nearest[0]:
            nearest = agreed, name, against
    ways = [Learned(format=name) for name in chat_format_names()]
    ways += told_calls(response_template)
    return _generic(of_probes, made[cut:], literals, nearest, ways)


def fitting_names(specials: Sequence[str]) -> tuple[str, ...]:
    """The formats whose special tokens a tokenizer has."""
    return tuple(name for name, _ in _candidates(Literals(specials)))


def _generic(
    of_probes: Sequence[tuple[Conversation, Rendering]],
    of_others: Sequence[tuple[Conversation, Rendering]],
    literals: Literals,
    nearest: tuple[float, str, str] | None,
    ways: Sequence[Learned],
) -> Judgement:
    texts = {each.name: made.text for each, made in of_others if made.text is not None}
    errors = {each.name: made.error for each, made in of_others}
    try:
        found = pieces_of(texts, errors, literals, ways)
        against = _against_pieces(of_probes, found, literals)
    except Unfit as unfit:
        raise Refused(_in_words(nearest, str(unfit))) from None
    if against is not None:
        raise Refused(_in_words(nearest, against))
    told = "" if not found.no_tools else f"; requests with tools are refused: {found.no_tools}"
    how = f"{_nearest(nearest)}; its own pieces write all of it{told}"
    description = described(found.pieces)
    if len(description.encode(errors="replace")) > _LONGEST_DESCRIPTION:
        raise Refused(_in_words(nearest, f"they have more than {_LONGEST_DESCRIPTION} bytes"))
    return Judgement(description=description, how=how, no_tools=found.no_tools)


def _against_pieces(
    of_probes: Sequence[tuple[Conversation, Rendering]], found: Found, literals: Literals
) -> str | None:
    try:
        chat_format = GenericFormat(found.pieces, literals.has_token)
    except ValueError as error:
        return str(error)
    served = [
        (probe, made)
        for probe, made in of_probes
        if not (found.no_tools and probe.tools)
        and not (probe.thinking and not chat_format.thinking)
    ]
    return _compared(served, GENERIC, chat_format)[1]


def _rendered(
    template: str,
    tried: Sequence[Conversation],
    special_tokens: Mapping[str, str],
    limits: TemplateLimits | None,
) -> list[Rendering]:
    """The template's text for each, with a call's arguments in the form that it takes."""
    best: list[Rendering] = []
    least = len(tried) + 1
    for as_list, as_text in ((False, False), (False, True), (True, False), (True, True)):
        wants = Wants(
            special_tokens=special_tokens, arguments_as_text=as_text, tools_as_list=as_list
        )
        made = run_template(template, [variables(each, wants) for each in tried], limits)
        failed = sum(each.text is None for each in made)
        if failed < least:
            best, least = made, failed
        if failed in (0, len(tried)):
            break
    return best


def _candidates(literals: Literals) -> Iterator[tuple[str, ChatFormat]]:
    for name in chat_format_names():
        try:
            yield name, chat_format_named(name, literals.has_token)
        except ValueError:
            continue


def _compared(
    of_probes: Sequence[tuple[Conversation, Rendering]], name: str, chat_format: ChatFormat
) -> tuple[float, str | None]:
    """The share of probes that agree, and the first that does not, in words."""
    against = [
        told
        for probe, made in of_probes
        if (told := _against(probe, made, name, chat_format)) is not None
    ]
    compared = sum(is_compared(name, probe) for probe, _ in of_probes)
    return (compared - len(against)) / max(compared, 1), against[0] if against else None


def _against(
    probe: Conversation, made: Rendering, name: str, chat_format: ChatFormat
) -> str | None:
    if not is_compared(name, probe):
        return None
    if made.text is None:
        if may_be_refused(name, probe):
            return None
        return f"in the probe {probe.name!r} it gives no text: {made.error}"
    found: Differing | None = differing(made.text, name, chat_format, probe)
    return None if found is None else str(found)


def _in_words(nearest: tuple[float, str, str] | None, generic: str) -> str:
    return f"{_nearest(nearest)}; and its turns cannot be put together from its pieces: {generic}"


def _nearest(nearest: tuple[float, str, str] | None) -> str:
    told = "none of which fits the tokenizer"
    if nearest is not None:
        told = f"of which {nearest[1]} is nearest: {nearest[2]}"
    return f"the chat template agrees with no renderer of ours, {told}"
