"""From a request and what it continues to a plan: what the model reads, how much it may write.

Pure decisions; nothing is claimed or sent here. A request that cannot run is refused with
the ``ApiError`` of protocol section 10.

Always true: a plan's header is rendered from this request alone (and the chain's own leading
system message); its prompt leaves room for at least one token unless it is a warm-up.
"""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from runtime.messages import TokenArray
from sessions.durable.compaction import TenantSeal, opened_input
from sessions.durable.renderer import Renderer
from sessions.durable.session import Session
from sessions.durable.tenant import Tenant
from sessions.durable.transcript import (
    NOTHING,
    ROOT_DIGEST,
    Entry,
    Tail,
    chain,
    check_calls,
    expanded,
    header_tools,
    roll,
    roll_all,
    split_opening,
    text_bytes,
)
from sessions.turns.continuing import Lineage
from sessions.turns.placing import place_outputs
from sessions.turns.reading import grammar_of, options_of
from sessions.turns.service import ServedModel, Service
from sessions.turns.shortening import Room
from sessions.turns.thresholds import due
from sessions.turns.truncation import Context, truncations, without_lost
from sessions.turns.turn_plan import Due, LastTurn, TurnPlan, placed
from tools_api import errors
from tools_api.built_in_items import ConfigurationUpdate
from tools_api.chat_format import TemplateOptions
from tools_api.grammar import GrammarSpec, param_at, place_of
from tools_api.items import CallOutput, Compaction, Item
from tools_api.limits import Limits
from tools_api.loaded_tools import configured, with_loaded
from tools_api.output_checks import OutputChecks, output_checks
from tools_api.requests import CreateRequest
from tools_api.tool_definitions import defines

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$-]+")
_MAX_KEY_CHARS = 100


_NO_FREE_TEXT = (
    "keepwarm.sampling.stop: no effect, the schema or the call that is asked for binds the whole "
    "output"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Prompt:
    """A context with its new part as token ids."""

    context: Context
    ids: TokenArray
    tail: Tail
    num_tokens: int
    """Header, held chain and new part together."""
    due: Due | None = None
    """How the whole context is to be recast, where the prompt is of that."""


def template_options(model: ServedModel, request: CreateRequest) -> TemplateOptions:
    return options_of(request, model.chat_format)


def turn_checks(request: CreateRequest) -> OutputChecks:
    """The parts of the output that the turn's grammar does not hold."""
    if not request.generate:
        return OutputChecks()
    return output_checks(
        request.tool_choice.callable(request.tools),
        request.text_format,
        lenient=request.keepwarm.lenient,
    )


def grammar_param(
    spec: GrammarSpec,
    request: CreateRequest,
    block: int | None,
    path: Sequence[str | int] | None = None,
) -> str:
    """Path of the request field that a refused grammar came from.

    Args:
        block: which of the grammar's JSON schemas is at fault, from 0, if that is known.
        path: keys and indices from that schema's root to the keyword at fault, if known.
    """
    lines = [n for n, line in enumerate(spec.lark.split("\n"), 1) if "%json " in line]
    if block is not None and block < len(lines):
        param = param_at(spec.lark, lines[block], request.tools)
        if param is not None:
            return param + "".join(map(_step, path or ()))
    callable_tools = request.tool_choice.callable(request.tools)
    if not callable_tools:
        return "text.format.schema"
    if len(callable_tools) > 1:
        return "tools"
    (only,) = callable_tools
    field = "format.definition" if only.plain else "parameters"
    return f"{place_of(request.tools, request.tools.index(only))}.{field}"


def _step(key: str | int) -> str:
    """One key or index of a path, as ``param`` writes it."""
    if isinstance(key, int):
        return f"[{key}]"
    key = key[:_MAX_KEY_CHARS]
    return f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key)}]"


def plan_turn(
    request: CreateRequest,
    lineage: Lineage,
    *,
    service: Service,
    tenant: Tenant,
    seal: TenantSeal,
    response_id: str,
    grammar: GrammarSpec | None,
    arrival_s: float,
) -> TurnPlan:
    """Render the new part of the context and settle the turn's own limit. Raises ApiError: calls
    and outputs do not match, the prompt is empty or does not fit."""
    model = service.model
    request, grammar = _configured(request, grammar, lineage, service, seal)
    options = template_options(model, request)
    whole = _whole_context(request, lineage, model, options, seal)
    prompt = _prompt(whole, request, model, options)
    request, grammar = _with_tools(request, prompt.context, grammar, service)
    private = not request.store or (lineage.parent is not None and lineage.parent.private)
    checks = turn_checks(request)
    return TurnPlan(
        response_id=response_id,
        request=request.model_copy(update={"store": not private}),
        private=private,
        tenant=tenant.name,
        session=lineage.session_name,
        number=1 if lineage.session is None else lineage.session.turns_begun + 1,
        model=request.model or model.name,
        adapter=request.model if request.model in model.adapters else None,
        previous_response_id=lineage.parent.id if lineage.parent is not None else None,
        continued=whole.parent,
        parent=prompt.context.parent,
        rebuilt=_rebuilt(whole, prompt.context),
        forks=_forks(request, lineage),
        header=prompt.context.header,
        input_items=prompt.context.items,
        input_ids=prompt.ids,
        tail=prompt.tail,
        open_calls=prompt.context.open_calls,
        digest=prompt.context.digest,
        left_out=prompt.context.left_out,
        cut=prompt.context is not whole,
        due=prompt.due,
        **_output_bound(request, prompt, service),
        grammar=placed(grammar, model.chat_format, options, prompt.tail),
        banned_tokens=banned_tokens(model, request, options),
        arrival_s=arrival_s,
        comparison=lineage.comparison,
        last_turn=LastTurn(said=lineage.said_before, idle_s=_idle_s(lineage.session, arrival_s)),
        checks=checks,
        warnings=_warnings(request, prompt, grammar) + checks.warnings(),
    )


def _with_tools(
    request: CreateRequest, context: Context, grammar: GrammarSpec | None, service: Service
) -> tuple[CreateRequest, GrammarSpec | None]:
    """The request with the tools that its context brings, and the turn's grammar then. Raises as
    ``with_loaded`` and ``grammar_of``."""
    before = context.parent is not None and context.parent.loads
    own = expanded(context.items)
    if request.late_choice is None and not before and not any(map(defines, own)):
        return request, grammar
    links = [(*link.input_items, *link.output_items) for link in chain(context.parent)]
    items = [item for link in reversed(links) for item in expanded(link)]
    known = with_loaded(request, (*items, *own), service.limits)
    return known, grammar_of(known, service.read_context)


def _configured(
    request: CreateRequest,
    grammar: GrammarSpec | None,
    lineage: Lineage,
    service: Service,
    seal: TenantSeal,
) -> tuple[CreateRequest, GrammarSpec | None]:
    """The request as the updates in its history have it, and its grammar then; both as they are
    where there are none. Raises as ``_whole_context``."""
    held = None if lineage.parent is None else lineage.parent.entry
    own = lineage.items
    kinds = set(map(type, own))
    if (held is None or not held.loads) and not kinds & {Compaction, ConfigurationUpdate}:
        return request, grammar
    if Compaction in kinds:
        own, _ = opened_input(own, seal)
    links = [(*link.input_items, *link.output_items) for link in chain(held)]
    items = [item for link in reversed(links) for item in expanded(link)]
    asked = configured(request, (*items, *expanded(own)), service.limits)
    same = asked is request
    return asked, grammar if same else grammar_of(asked, service.read_context)


def _idle_s(session: Session | None, now: float) -> float | None:
    if session is None or not session.turns_begun:
        return None
    return max(now - session.last_active_s, 0.0)


def banned_tokens(
    model: ServedModel, request: CreateRequest, options: TemplateOptions
) -> tuple[int, ...]:
    """Special tokens that mean nothing in the turn's output."""
    calls = bool(request.tool_choice.callable(request.tools))
    return model.renderer.banned_tokens(thinking=options.thinking, calls=calls)


def count_prompt(
    request: CreateRequest, lineage: Lineage, model: ServedModel, seal: TenantSeal
) -> int:
    """Tokens that the model would read, whether they fit or not.

    Raises:
        ApiError: calls and outputs do not match, or no context could hold the input.
    """
    options = template_options(model, request)
    whole = _whole_context(request, lineage, model, options, seal)
    return _render(whole, model.renderer, request, options).num_tokens


def _wanted_output(request: CreateRequest, limits: Limits) -> int:
    asked = request.max_output_tokens
    return limits.default_output_tokens if asked is None else asked


class _OutputBound(TypedDict):
    max_output: int
    context_limited: bool


def _output_bound(request: CreateRequest, prompt: _Prompt, service: Service) -> _OutputBound:
    """Most output tokens, and whether the context decides that; 0 for a warm-up."""
    left = service.model.max_context_tokens - prompt.num_tokens
    wanted = _wanted_output(request, service.limits)
    most = min(wanted, left) if request.generate else 0
    return {"max_output": most, "context_limited": wanted > left}


def _warnings(
    request: CreateRequest, prompt: _Prompt, grammar: GrammarSpec | None
) -> tuple[str, ...]:
    """Warnings about fields of the request that have no effect here."""
    idle_stops = bool(request.keepwarm.sampling.stop) and grammar is not None and grammar.binds_all
    stops = (_NO_FREE_TEXT,) if idle_stops else ()
    return (*request.warnings, *stops, *prompt.context.cuts)


def _prompt(
    whole: Context, request: CreateRequest, model: ServedModel, options: TemplateOptions
) -> _Prompt:
    """``whole`` as it is where it is due to be recast, else as ``_fitting_prompt``. Raises as
    that, and as ``due``."""
    if request.may_compact:
        prompt = _render(whole, model.renderer, request, options)
        found = due(request, prompt.num_tokens, whole, model)
        if found is not None and prompt.num_tokens:
            return replace(prompt, due=found)
    return _fitting_prompt(whole, request, model, options)


def _whole_context(
    request: CreateRequest,
    lineage: Lineage,
    model: ServedModel,
    options: TemplateOptions,
    seal: TenantSeal,
) -> Context:
    """The context before any truncation.

    Raises:
        ApiError: calls and outputs do not match, the input is hopelessly long, or a compaction
            in it is not this tenant's or not for this model.
    """
    held = lineage.parent.entry if lineage.parent is not None else None
    if Compaction in set(map(type, lineage.items)):
        return _compacted_context(request, lineage, model, options, seal)
    given, lost = without_lost(held, lineage.items)
    put = place_outputs(held, given, complete=request.generate)
    parent, items = put.parent, put.items
    if held is None:
        opening, items = split_opening(items)
    else:
        opening = held.opening
    if parent is not None:
        digest = parent.digest
    else:
        digest = ROOT_DIGEST if opening is None else roll(ROOT_DIGEST, opening)
    open_calls = check_calls(parent, items, complete=request.generate)
    if request.truncation == "disabled":
        _refuse_hopeless(model, request.input)
    header = model.renderer.header(
        instructions=request.instructions,
        opening=opening,
        tools=request.tools,
        options=options,
        parent=held,
    )
    return Context(
        parent=parent,
        items=items,
        header=header,
        open_calls=open_calls,
        digest=roll_all(digest, lineage.items if lost else items),
        left_out=NOTHING if parent is None else parent.left_out,
        cuts=lost + put.warnings,
    )


def _compacted_context(
    request: CreateRequest,
    lineage: Lineage,
    model: ServedModel,
    options: TemplateOptions,
    seal: TenantSeal,
) -> Context:
    """The context of a request with compactions: what stands before the newest that stands for
    all of it does not count. Raises as ``_whole_context``."""
    held = lineage.parent.entry if lineage.parent is not None else None
    opening, rest = (None if held is None else held.opening), lineage.items
    if held is None:
        opening, rest = split_opening(rest)
    counted, alone = opened_input(rest, seal)
    parent = None if alone else held
    items, lost = without_lost(parent, counted)
    if parent is None:
        digest = ROOT_DIGEST if opening is None else roll(ROOT_DIGEST, opening)
    else:
        digest = parent.digest
    if request.truncation == "disabled":
        _refuse_hopeless(model, items)
    header = model.renderer.header(
        instructions=request.instructions,
        opening=opening,
        tools=request.tools,
        options=options,
        parent=held,
    )
    return Context(
        parent=parent,
        items=items,
        header=header,
        open_calls=check_calls(parent, items, complete=request.generate),
        digest=roll_all(digest, counted),
        left_out=NOTHING if parent is None else parent.left_out,
        cuts=lost,
    )


def _rebuilt(whole: Context, context: Context) -> bool:
    """Whether ``context`` differs from that of ``whole``'s parent from its first tokens on."""
    parent = whole.parent
    changed = parent is not None and not whole.header.same_tokens(parent.header)
    return changed or context.parent is not parent


def _forks(request: CreateRequest, lineage: Lineage) -> bool:
    """Whether the chain that a turn goes on from stays another's: its client says so, or it is that
    of another session."""
    parent = lineage.parent
    return request.keepwarm.fork or (
        parent is not None and parent.session.name != lineage.session_name
    )


def _fitting_prompt(
    whole: Context, request: CreateRequest, model: ServedModel, options: TemplateOptions
) -> _Prompt:
    """``whole`` rendered, or what truncation leaves of it if the request allows that.

    Raises:
        ApiError: the prompt is empty or does not fit.
    """
    most, reply = model.max_context_tokens, _wanted_room(request, model)
    room = Room(max_tokens=most, longest_token_bytes=model.longest_token_bytes, reply_tokens=reply)
    may_cut = request.truncation == "auto"
    prompt: _Prompt | None = None
    if not (may_cut and room.is_hopeless(whole.items)):
        try:
            prompt = _render(whole, model.renderer, request, options, most=most)
        except errors.ApiError:  # too long to be tokenised
            if not may_cut:
                raise
    if may_cut and (prompt is None or prompt.num_tokens + reply > most):
        for shorter in truncations(whole, model.renderer, options, room):
            prompt = _render(shorter, model.renderer, request, options)
            if prompt.num_tokens <= room.left_by_cut(len(whole.header.ids)):
                break
    assert prompt is not None
    least = 1 if request.generate else 0
    if prompt.num_tokens + least > most:
        raise _too_long(request, prompt.num_tokens, most)
    if prompt.num_tokens == 0 and request.generate:
        raise errors.missing_parameter("input")
    return prompt


def _too_long(request: CreateRequest, num_tokens: int, most: int) -> errors.ApiError:
    if request.truncation == "auto":
        advice = "instructions and tools, calls and messages that stay are too long together"
        return errors.context_length_exceeded(num_tokens, most, advice)
    return errors.context_length_exceeded(num_tokens, most)


def _render(
    context: Context,
    renderer: Renderer,
    request: CreateRequest,
    options: TemplateOptions,
    most: int | None = None,
) -> _Prompt:
    """``most``: see ``Renderer.input``."""
    parent = context.parent
    ids, tail = renderer.input(
        context.items,
        parent.tail if parent is not None else Tail.START,
        generate=request.generate,
        options=options,
        most=most,
    )
    before = parent.num_tokens if parent is not None else 0
    num_tokens = len(context.header.ids) + before + len(ids)
    return _Prompt(context=context, ids=ids, tail=tail, num_tokens=num_tokens)


def _wanted_room(request: CreateRequest, model: ServedModel) -> int:
    """Tokens that truncation keeps free for the answer: an eighth of the context, or less
    if the client wants less."""
    if not request.generate:
        return 0
    eighth = max(model.max_context_tokens // 8, 1)
    return min(request.max_output_tokens or eighth, eighth)


def _refuse_hopeless(model: ServedModel, items: Sequence[Item]) -> None:
    """Refuse by its length what cannot fit, before seconds go into tokenising it."""
    num_bytes = sum(map(text_bytes, items))
    least_tokens = num_bytes // model.longest_token_bytes
    if least_tokens > model.max_context_tokens:
        raise errors.context_length_exceeded(least_tokens, model.max_context_tokens)


def takes_long(
    service: Service, request: CreateRequest, lineage: Lineage, frame_bytes: int
) -> bool:
    """Whether the turn's plan may tokenise more than ``max_inline_bytes``."""
    most = service.limits.max_inline_bytes
    parent = lineage.parent
    if parent is None:
        return frame_bytes > most
    if parent.entry.loads:
        return True  # the tools that it brings, and their grammar, are read anew
    cut_short = request.truncation == "auto" or request.may_compact
    if cut_short and parent.entry.num_tokens > most // 4:
        return True  # what is left of a chain that is cut short is rendered anew
    answers = any(isinstance(item, CallOutput) for item in lineage.items)
    if answers and _warmed(parent.entry) > most // 4:
        return True  # what outputs stand in front of is said anew
    if frame_bytes <= most:
        return False
    header, options = parent.entry.header, template_options(service.model, request)
    if (request.instructions, header_tools(request.tools), options) != (
        header.instructions,
        header.tools,
        header.options,
    ):
        return True
    return sum(map(text_bytes, lineage.items)) > most


def _warmed(entry: Entry) -> int:
    """Tokens at the end of the chain that no model has answered yet."""
    links = itertools.takewhile(lambda link: link.tail.is_input, chain(entry))
    return sum(link.own_tokens for link in links)
