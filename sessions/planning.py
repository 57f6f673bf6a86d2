"""From a request to a plan: what it continues, what the model will read, how much it may write.

Pure decisions; nothing is claimed or sent here. A request that cannot run is refused with
the ``ApiError`` of protocol section 10.

Always true: a plan's header is rendered from this request alone (and the chain's own leading
system message); its prompt leaves room for at least one token unless it is a warm-up.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.messages import TokenArray
from sessions.cache_diagnostics import Comparison
from sessions.service import ServedModel, Service
from sessions.session import Session
from sessions.store import ConnectionStore, StoredResponse
from sessions.transcript import (
    ROOT_DIGEST,
    Entry,
    Header,
    Renderer,
    Tail,
    chain,
    check_calls,
    roll,
    roll_all,
    split_opening,
    text_bytes,
)
from sessions.turn_plan import TurnPlan
from tools_api import errors
from tools_api.chat_format import TemplateOptions
from tools_api.grammar import GrammarSpec, grammar_for, param_at
from tools_api.items import FunctionCall, FunctionCallOutput, Item, Message
from tools_api.output_checks import OutputChecks, output_checks
from tools_api.requests import CreateRequest

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$-]+")
_MAX_KEY_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lineage:
    """Where a turn comes from."""

    parent: StoredResponse | None
    session: Session | None
    """None: a new one, to be made when the turn begins."""
    session_name: str
    items: tuple[Item, ...]
    """Of the request's input, those that are not history."""
    comparison: Comparison | None = None
    """What the client wants the turn's cache hits compared with."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Context:
    """What the model will read, split into what is held and what is new."""

    parent: Entry | None
    items: tuple[Item, ...]
    opening: Message | None
    header: Header
    open_calls: frozenset[str]
    digest: bytes
    """Over all items, those included that truncation leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Prompt:
    """A context with its new part as token ids."""

    context: _Context
    ids: TokenArray
    tail: Tail
    num_tokens: int
    """Header, held chain and new part together."""


def template_options(model: ServedModel, request: CreateRequest) -> TemplateOptions:
    thinking = request.reasoning.thinking and model.chat_format.thinking
    return TemplateOptions(thinking=thinking)


def turn_grammar(service: Service, request: CreateRequest) -> GrammarSpec | None:
    """The constraint on the turn's output; None if it is free.

    Raises:
        ApiError: the model cannot do what ``tool_choice`` demands.
    """
    if not request.generate:
        return None
    return grammar_for(
        service.model.chat_format,
        request.tools,
        request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        text_format=request.text_format,
        options=template_options(service.model, request),
        lenient=request.keepwarm.lenient,
        max_calls=service.limits.max_parallel_calls,
    )


def turn_checks(request: CreateRequest) -> OutputChecks:
    """What the grammar of the turn does not hold its output to."""
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
        param = param_at(spec.lark, lines[block])
        if param is not None:
            return param + "".join(map(_step, path or ()))
    callable_tools = request.tool_choice.callable(request.tools)
    if not callable_tools:
        return "text.format.schema"
    only = request.tools.index(callable_tools[0])
    return f"tools[{only}].parameters" if len(callable_tools) == 1 else "tools"


def _step(key: str | int) -> str:
    """One key or index of a path, as ``param`` writes it."""
    if isinstance(key, int):
        return f"[{key}]"
    key = key[:_MAX_KEY_CHARS]
    return f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key)}]"


def find_lineage(
    request: CreateRequest, visible: ConnectionStore, session: Session | None, new_name: str
) -> Lineage:
    """Find what the turn continues.

    In this order: the response it names; the response whose history its input begins with;
    the head of the session it names; nothing.

    Args:
        session: the one the request names, if it does.
        new_name: for a session that has to be made.

    Raises:
        ApiError: ``previous_response_not_found``.
    """
    items = request.input
    parent: StoredResponse | None = None
    if request.previous_response_id is not None:
        parent = visible.response(request.previous_response_id)
        if parent is None:
            raise errors.previous_response_not_found(request.previous_response_id)
    elif (found := visible.history(items)) is not None:
        parent, length = found
        items = items[length:]
    elif session is not None:
        parent = visible.head(session)
    if session is None and parent is not None:
        session = visible.revive(parent.session)
    return Lineage(
        parent=parent,
        session=session,
        session_name=new_name if session is None else session.name,
        items=items,
        comparison=_comparison(request, visible),
    )


def _comparison(request: CreateRequest, visible: ConnectionStore) -> Comparison | None:
    options = request.prompt_cache_options
    if options is None or options.comparison_response_id is None:
        return None
    found = visible.response(options.comparison_response_id)
    return Comparison(entry=None if found is None else found.entry)


def plan_turn(
    request: CreateRequest,
    lineage: Lineage,
    *,
    service: Service,
    tenant: str,
    response_id: str,
    grammar: GrammarSpec | None,
    arrival_s: float,
) -> TurnPlan:
    """Render the new part of the context and settle the turn's own limit.

    Raises:
        ApiError: calls and outputs do not match, the prompt is empty or does not fit.
    """
    model = service.model
    options = template_options(model, request)
    whole = _whole_context(request, lineage, model, options)
    prompt = _fitting_prompt(whole, request, model, options)
    context = prompt.context
    private = not request.store or (lineage.parent is not None and lineage.parent.private)
    context_left = model.max_context_tokens - prompt.num_tokens
    wanted = request.max_output_tokens or context_left
    checks = turn_checks(request)
    return TurnPlan(
        response_id=response_id,
        request=request.model_copy(update={"store": not private}),
        private=private,
        tenant=tenant,
        session=lineage.session_name,
        number=1 if lineage.session is None else lineage.session.turns_begun + 1,
        model=request.model or model.name,
        previous_response_id=lineage.parent.id if lineage.parent is not None else None,
        continued=whole.parent,
        parent=context.parent,
        rebuilt=_rebuilt(whole, context),
        header=context.header,
        opening=context.opening,
        input_items=context.items,
        input_ids=prompt.ids,
        tail=prompt.tail,
        open_calls=context.open_calls,
        digest=context.digest,
        options=options,
        max_output=min(wanted, context_left) if request.generate else 0,
        context_limited=request.max_output_tokens is None or wanted > context_left,
        grammar=grammar,
        banned_tokens=_banned_tokens(model, request, options),
        arrival_s=arrival_s,
        comparison=lineage.comparison,
        checks=checks,
        warnings=checks.warnings(),
    )


def _banned_tokens(
    model: ServedModel, request: CreateRequest, options: TemplateOptions
) -> tuple[int, ...]:
    calls = bool(request.tool_choice.callable(request.tools))
    return model.renderer.banned_tokens(thinking=options.thinking, calls=calls)


def _whole_context(
    request: CreateRequest, lineage: Lineage, model: ServedModel, options: TemplateOptions
) -> _Context:
    """The context before any truncation.

    Raises:
        ApiError: calls and outputs do not match, or the input is hopelessly long.
    """
    parent = lineage.parent.entry if lineage.parent is not None else None
    if parent is None:
        opening, items = split_opening(lineage.items)
        digest = ROOT_DIGEST if opening is None else roll(ROOT_DIGEST, opening)
    else:
        opening, items, digest = parent.opening, lineage.items, parent.digest
    digest = roll_all(digest, items)
    open_calls = check_calls(parent, items, complete=request.generate)
    _refuse_hopeless(model, request)
    header = model.renderer.header(
        instructions=request.instructions,
        opening=opening,
        tools=request.tools,
        options=options,
        parent=parent,
    )
    return _Context(
        parent=parent,
        items=items,
        opening=opening,
        header=header,
        open_calls=open_calls,
        digest=digest,
    )


def _rebuilt(whole: _Context, context: _Context) -> bool:
    """Whether ``context`` differs from that of ``whole``'s parent from its first tokens on."""
    parent = whole.parent
    changed = parent is not None and not whole.header.same_tokens(parent.header)
    return changed or context.parent is not parent


def _fitting_prompt(
    whole: _Context, request: CreateRequest, model: ServedModel, options: TemplateOptions
) -> _Prompt:
    """``whole`` rendered, or what truncation leaves of it if the request allows that.

    Raises:
        ApiError: the prompt is empty or does not fit.
    """
    most = model.max_context_tokens
    prompt = _render(whole, model.renderer, request, options)
    if request.truncation == "auto" and prompt.num_tokens + _wanted_room(request, model) > most:
        shorter = _truncated(whole, model.renderer, options, most)
        if shorter is not whole:
            prompt = _render(shorter, model.renderer, request, options)
    room = 1 if request.generate else 0
    if prompt.num_tokens + room > most:
        raise errors.context_length_exceeded(prompt.num_tokens, most)
    if prompt.num_tokens == 0 and request.generate:
        raise errors.missing_parameter("input")
    return prompt


def _render(
    context: _Context, renderer: Renderer, request: CreateRequest, options: TemplateOptions
) -> _Prompt:
    parent = context.parent
    ids, tail = renderer.input(
        context.items,
        parent.tail if parent is not None else Tail.START,
        generate=request.generate,
        options=options,
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


def _refuse_hopeless(model: ServedModel, request: CreateRequest) -> None:
    """Refuse by its length what cannot fit, before seconds go into tokenising it."""
    kept = request.input[-1:] if request.truncation == "auto" else request.input
    num_bytes = sum(map(text_bytes, kept))
    least_tokens = num_bytes // model.longest_token_bytes
    if least_tokens > model.max_context_tokens:
        raise errors.context_length_exceeded(least_tokens, model.max_context_tokens)


# Truncation: the oldest turns go, then the oldest of the new items.


def _truncated(
    context: _Context, renderer: Renderer, options: TemplateOptions, max_tokens: int
) -> _Context:
    """A context of at most three quarters of ``max_tokens``, if the last item allows it.

    The slack keeps the next turns from truncating, and so missing the cache, each time.
    A call never stays without its output, nor an output without its call. The turns that
    stay keep their token ids; only the input of the first of them is rendered anew, since
    it now follows the header.
    """
    if context.parent is None and len(context.items) <= 1:
        return context
    target = max_tokens * 3 // 4
    sizes = [renderer.count((item,), options) for item in context.items]
    used = len(context.header.ids) + sum(sizes)
    kept: list[Entry] = []
    for entry in chain(context.parent):
        used += entry.own_tokens
        if used > target:
            break
        kept.append(entry)
    while kept and _orphans(kept[-1].input_items, known=frozenset()):
        kept.pop()
    if kept:
        return replace(context, parent=_rechained(kept[::-1], renderer))
    size_of = dict(zip(map(id, context.items), sizes, strict=True))
    items = list(_without_orphans(context.items))
    sizes = [size_of[id(item)] for item in items]
    while len(items) > 1 and len(context.header.ids) + sum(sizes) > target:
        del items[0], sizes[0]
        while len(items) > 1 and _orphans(items[:1], known=frozenset()):
            del items[0], sizes[0]
    return replace(context, parent=None, items=tuple(items))


def _rechained(entries: Sequence[Entry], renderer: Renderer) -> Entry:
    """Copies of ``entries``, the first of them at the start of a chain."""
    first = entries[0]
    ids, _ = renderer.input(
        first.input_items,
        Tail.START,
        generate=first.tail is not Tail.INPUT,
        options=first.header.options,
    )
    copy = replace(first, parent=None, input_ids=ids, num_tokens=len(ids) + len(first.output_ids))
    for entry in entries[1:]:
        copy = replace(entry, parent=copy, num_tokens=copy.num_tokens + entry.own_tokens)
    return copy


def _orphans(items: Sequence[Item], *, known: frozenset[str]) -> list[Item]:
    """Outputs among ``items`` whose call is neither known nor before them."""
    calls, orphans = set(known), list[Item]()
    for item in items:
        if isinstance(item, FunctionCall):
            calls.add(item.call_id)
        elif isinstance(item, FunctionCallOutput) and item.call_id not in calls:
            orphans.append(item)
    return orphans


def _without_orphans(items: tuple[Item, ...]) -> tuple[Item, ...]:
    orphans = _orphans(items, known=frozenset())
    kept = tuple(item for item in items if not any(item is orphan for orphan in orphans))
    return kept or items
