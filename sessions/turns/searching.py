"""A turn whose model searches for tools goes on behind what the server finds.

The model's calls end a part of the turn; their outputs are told as items, written behind them with
the definitions of what was found, and the next part begins there, with a grammar that knows these.
To the client it is one response, to the journal one turn, to the ledger the sum of its parts.

Always true: what is found depends on the request's tools and the items that its model has read;
after ``MOST_SEARCHES`` parts the search cannot be called any more.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from runtime.grammar.refusal import GrammarRefused
from runtime.messages import TokenArray
from sessions.durable.session import Session
from sessions.durable.transcript import Entry, Tail, chain, expanded, roll_all
from sessions.turns.asking import Asking
from sessions.turns.commits import Ending
from sessions.turns.effects import Work
from sessions.turns.jobs import EndedEarly, Job
from sessions.turns.memory import Memory
from sessions.turns.planning import banned_tokens, turn_checks
from sessions.turns.playing import Playing
from sessions.turns.reading import grammar_of
from sessions.turns.service import Service
from sessions.turns.turn import Turn, TurnStep
from sessions.turns.turn_plan import Begun, TurnPlan, placed
from tools_api import exact_json
from tools_api.built_in_items import BuiltInCall, BuiltInOutput
from tools_api.errors import ApiError, invalid_json_schema
from tools_api.items import Item
from tools_api.loaded_tools import with_loaded
from tools_api.requests import CreateRequest
from tools_api.tool_search import search
from tools_api.tools import FunctionTool, ToolChoice, wire_tools

MOST_SEARCHES = 8
"""Parts of one turn that end with searches; ``max_tool_calls`` may allow fewer."""


class Searching:
    """The turns of one connection that search."""

    def __init__(self, *, service: Service, playing: Playing, asking: Asking) -> None:
        self._service = service
        self._playing = playing
        self._asking = asking

    async def go_on(
        self, job: Job, memory: Memory, turn: Turn, ending: Ending, session: Session
    ) -> tuple[Turn, Ending]:
        """Play what follows a part of a turn, as long as parts end with searches; returns the last
        one and how it ended."""
        while ending.outcome.goes_on:
            entry = ending.outcome.entry
            assert entry is not None
            job.ending = None
            try:
                turn = await self._next(job, turn, entry, session)
                ending = await self._playing.play(job, memory, turn)
            finally:
                self._service.store.branches.drop(entry)
        return turn, ending

    async def _next(self, job: Job, turn: Turn, entry: Entry, session: Session) -> Turn:
        """The part behind an entry: not begun, or ended already where it cannot be."""
        outputs = answers(turn, entry, self._service.new_id)
        self._playing.carry_out(job, TurnStep(events=turn.events.leading(outputs)))
        refusal: ApiError | None = None
        work = partial(next_plan, turn, entry, outputs, service=self._service)
        try:
            plan: TurnPlan = await self._asking.ask(job, Work(work))
            if plan.grammar is not None:
                await self._asking.ask(job, plan.grammar)
        except EndedEarly as early:
            job.early, plan = early.with_traceback(None), unread(turn, entry, outputs)
        except GrammarRefused as refused:
            refusal = invalid_json_schema("tools", refused.reason)
        except ApiError as error:
            refusal = error
        if refusal is not None:
            plan = unread(turn, entry, outputs)
        following = Turn(
            plan,
            service=self._service,
            ledger=session.ledger,
            stream_id=job.lane.stream_id,
            events=turn.events,
            accounts=turn.accounts,
        )
        job.turn = following
        if refusal is not None:
            self._playing.carry_out(job, following.refuse(refusal))
        elif job.early is None and turn.steered is not None:
            following.steer(turn.steered)
            self._playing.carry_out(job, following.end_steered(self._service.clock()))
        elif job.early is None and plan.max_output < 1:
            self._playing.carry_out(job, following.out_of_room(context=plan.context_limited))
        return following


def answers(turn: Turn, entry: Entry, new_id: Callable[[str], str]) -> tuple[BuiltInOutput, ...]:
    """The outputs of a turn's searches."""
    brought = {tool.name for tool in turn.plan.request.tools if tool.offered}
    found: list[BuiltInOutput] = []
    for call in turn.searches:
        deferred = [
            tool
            for tool in turn.plan.request.tools
            if not tool.in_header and tool.name not in brought
        ]
        tools = search(deferred, exact_json.loads(call.arguments))
        brought |= {tool.name for tool in tools}
        found.append(_output(call, tools, new_id("tso")))
    return tuple(found)


def _output(call: BuiltInCall, tools: Sequence[FunctionTool], id_: str) -> BuiltInOutput:
    written = wire_tools([replace(tool, introduces=False, by_item=False) for tool in tools])
    return BuiltInOutput(
        type="tool_search_output",
        call_id=call.call_id,
        output=exact_json.written(written),
        told=exact_json.written({"execution": "server", "tools": written}),
        id=id_,
        status="completed",
        name=call.full_name,
    )


def unread(turn: Turn, entry: Entry, outputs: tuple[Item, ...]) -> TurnPlan:
    """The plan of a part that nothing is computed for."""
    plan = turn.plan
    options, renderer = plan.options, turn.renderer
    ids, tail = renderer.input(outputs, entry.tail, generate=True, options=options)
    begun = turn.begun(entry, outputs, ids)
    return _behind(plan, entry, begun, outputs, ids=ids, tail=tail)


def next_plan(
    turn: Turn, entry: Entry, outputs: tuple[BuiltInOutput, ...], *, service: Service
) -> TurnPlan:
    """The plan of the part of a turn behind the outputs of its searches.

    Raises:
        ApiError: too many tools can be called now, or their definitions have no room.
    """
    plan, model = turn.plan, service.model
    ids, tail = model.renderer.input(
        outputs,
        entry.tail,
        generate=True,
        options=plan.options,
        most=model.max_context_tokens,
    )
    begun = turn.begun(entry, outputs, ids)
    request = _asked(plan.request, begun, (*_read(entry), *outputs), service)
    left = model.max_context_tokens - len(plan.header.ids) - entry.num_tokens - len(ids)
    wanted = plan.max_output - turn.num_output_tokens
    behind = _behind(plan, entry, begun, outputs, ids=ids, tail=tail)
    return replace(
        behind,
        request=request,
        max_output=min(wanted, left),
        context_limited=wanted > left,
        grammar=placed(
            grammar_of(request, service.read_context), model.chat_format, plan.options, tail
        ),
        banned_tokens=banned_tokens(model, request, plan.options),
        checks=turn_checks(request),
    )


def _behind(
    plan: TurnPlan,
    entry: Entry,
    begun: Begun,
    outputs: tuple[Item, ...],
    *,
    ids: TokenArray,
    tail: Tail,
) -> TurnPlan:
    answered = {item.call_id for item in outputs if isinstance(item, BuiltInOutput)}
    return replace(
        plan,
        continued=entry,
        continued_id=None,
        parent=entry,
        rebuilt=False,
        forks=False,
        input_items=outputs,
        input_ids=ids,
        tail=tail,
        open_calls=entry.open_calls - answered,
        digest=roll_all(entry.digest, outputs),
        begun=begun,
    )


def _read(entry: Entry) -> list[Item]:
    """The items of a history up to an entry, oldest first."""
    links = [(*link.input_items, *link.output_items) for link in chain(entry)]
    return [item for link in reversed(links) for item in expanded(link)]


def _asked(
    request: CreateRequest, begun: Begun, items: Sequence[Item], service: Service
) -> CreateRequest:
    """The request of the next part: it may call what was found, and search as often as is left."""
    known = with_loaded(request, items, service.limits)
    most = min(MOST_SEARCHES, request.max_tool_calls or MOST_SEARCHES)
    tools = known.tools
    if begun.part >= most:
        tools = tuple(
            replace(tool, offered=tool.offered and not _runs_here(tool)) for tool in tools
        )
    choice = known.tool_choice
    searched = any(_runs_here(tool) and tool.name in (choice.names or ()) for tool in tools)
    if (choice.named and searched) or not choice.callable(tools):
        choice = ToolChoice(mode="none" if choice.mode == "none" else "auto")
    return known.model_copy(update={"tools": tools, "tool_choice": choice})


def _runs_here(tool: FunctionTool) -> bool:
    return tool.built_in is not None and tool.built_in.runs_here
