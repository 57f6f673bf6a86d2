"""A context that is due is recast: which summary is asked for, and the plan of the turn behind it.

Knows who writes a summary and of what (the model itself, behind the chain as it stands, so that
little more than the instruction is computed), and what becomes of it. Whether a context is due is
``sessions.turns.thresholds``; what stays and what goes ``recasting``. Pure decisions; the turns are
run by ``sessions.turns.summing_up``.

Always true: header and tools stay byte for byte; whatever is left of a context is one compaction
item, so that a server which is sent that item reads the same tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from sessions.durable.compaction import standing
from sessions.durable.ledger import TurnReport
from sessions.durable.transcript import (
    NOTHING,
    ROOT_DIGEST,
    Entry,
    Tail,
    chain,
    check_calls,
    expanded,
    roll,
    roll_all,
)
from sessions.turns.recasting import (
    Decision,
    RecastRoom,
    cuts,
    decide,
    recast,
    sample_note,
    without_summary,
)
from sessions.turns.service import Service
from sessions.turns.shortening import Room
from sessions.turns.summaries import (
    LONGEST_SUMMARY,
    asking_for_summary,
    instruction,
    read_summary,
)
from sessions.turns.thresholds import rules_of
from sessions.turns.truncation import Context, truncations
from sessions.turns.turn_plan import NO_CHECKS, NO_LAST_TURN, PreparedCut, Recast, TurnPlan
from tools_api import errors
from tools_api.call_order import by_model
from tools_api.items import (
    CallOutput,
    Compaction,
    CompactionKind,
    Item,
    Message,
    StandsFor,
)

NO_SUMMARY = "compaction: no summary could be had, so old tool results alone are cleared"
NOTHING_GONE = (
    "compaction: no summary could be had, and there is no old tool result to clear: the context "
    "stays as long as it is"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Said:
    """A history item by item, compactions taken apart."""

    items: tuple[Item, ...]
    sizes: tuple[int, ...]
    summary_at: int | None

    @property
    def tokens(self) -> int:
        return sum(self.sizes)


class Recasting:
    """One turn's. Made and ``finish``ed beside the event loop where the context is long."""

    def __init__(
        self,
        plan: TurnPlan,
        *,
        service: Service,
        summary_id: str,
        item_id: str,
        prepared: PreparedCut | None = None,
    ) -> None:
        """
        Args:
            plan: due, of the whole context.
            prepared: what was computed ahead for the chain that it continues.
        """
        assert plan.due is not None
        self.plan = plan
        self._due = plan.due
        self._service = service
        self._model = service.model
        self._item_id = item_id
        self.rules = rules_of(plan.request, plan.due.entry)
        self._said = self._flat(prepared)
        self._failed: tuple[str, ...] = ()
        """A warning that no summary could be had."""
        self._room = self._make_room()
        self.summary: TurnPlan | None = None
        """The turn that is to be run first, if a summary is needed."""
        self.decision: Decision | None = None
        """The decision how to cut; None: nothing can be gained."""
        self._prepared: PreparedCut | None = None
        if prepared is not None and prepared.rules == self.rules and prepared.decision is not None:
            self._prepared, self.decision = prepared, prepared.decision
        else:
            self._decide(summary_id)

    @property
    def announced(self) -> Compaction | None:
        """The item that a client is told of before it is made; None: it sees none."""
        if self._due.inner:
            return None
        return Compaction(encrypted_content="kw1w..", id=self._item_id)

    @property
    def idle(self) -> bool:
        """Whether nothing can be gained: the turn runs as it would without a threshold."""
        return self.decision is None and not self._always

    @property
    def _always(self) -> bool:
        return self.plan.request.compacts != "no"

    def without(self) -> TurnPlan:
        """The plan where nothing can be gained.

        Raises:
            ApiError: the context does not fit.
        """
        warning = "compaction: nothing of the context can be left out; raise the threshold"
        plan = replace(self.plan, due=None, warnings=(*self.plan.warnings, warning))
        return self._fitting(plan, self._context())

    def finish(self, text: str | None) -> TurnPlan:
        """The plan of the turn itself.

        Args:
            text: the summary; None: there is none, or none was needed.

        Raises:
            ApiError: what is left does not fit.
        """
        said, decision, warnings = self._said, self.decision, self.plan.warnings
        if self._prepared is not None:
            text = self._prepared.text
            warnings += self._prepared.warnings
        if decision is None or (decision.summarised and text is None):
            decision = without_summary(said.items, said.sizes, self._room, self.rules)
            self.decision = decision
            self._failed = (NO_SUMMARY if decision.cleared else NOTHING_GONE,)
            warnings += self._failed
        left = recast(
            said.items, said.sizes, decision, self.rules,
            summary=text, summary_at=said.summary_at,
        )  # fmt: skip
        alone = self.plan.request.compacts == "alone" and bool(decision.summarised)
        before, item = self._item(left, alone=alone)
        plan = replace(
            self.plan,
            warnings=warnings,
            recast=Recast(items=() if self._due.inner else (*before, item)),
        )
        plan = self._behind(plan, (*before, item))
        assert plan.recast is not None
        plan.recast.report.update(self._report(decision, plan.prompt_tokens))
        return plan

    def keep(self, prepared: PreparedCut, text: str | None, cost: dict[str, Any]) -> bool:
        """Keep what was finished for the turn that makes the cut. False: nothing can be gained.

        Args:
            text: the summary, if there is one.
            cost: what it took, as ``read`` says.
        """
        decision = self.decision
        if decision is None or not (decision.cleared or decision.summarised):
            return False
        prepared.decision, prepared.rules = decision, self.rules
        prepared.text, prepared.cost, prepared.warnings = text, cost, self._failed
        prepared.items, prepared.sizes = self._said.items, self._said.sizes
        return True

    # What is said

    def _context(self) -> Context:
        plan = self.plan
        return Context(
            parent=plan.parent,
            items=plan.input_items,
            header=plan.header,
            open_calls=plan.open_calls,
            digest=plan.digest,
            left_out=plan.left_out,
        )

    def _flat(self, prepared: PreparedCut | None) -> _Said:
        """``prepared``: knows the sizes of what was looked at ahead."""
        items, summary_at = list[Item](), None
        for item in self._whole():
            if isinstance(item, Compaction):
                inner = standing(item)
                if inner.summary_at is not None:
                    summary_at = len(items) + inner.summary_at
                items += inner.items
            else:
                items.append(item)
        known = 0
        if prepared is not None:
            pairs = zip(items, prepared.items, strict=False)
            known = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        sizes = [] if prepared is None else list(prepared.sizes[:known])
        sizes += [self._count(item) for item in items[known:]]
        return _Said(items=tuple(items), sizes=tuple(sizes), summary_at=summary_at)

    def _whole(self) -> Iterator[Item]:
        for entry in reversed(list(chain(self.plan.parent))):
            yield from entry.input_items
            yield from entry.output_items
        yield from self.plan.input_items

    def _count(self, item: Item) -> int:
        return self._model.renderer.count((item,), self.plan.options)

    def _make_room(self) -> RecastRoom:
        header = len(self.plan.header.ids)
        if self.rules.keeps_uses is not None:
            target = 0
        else:
            target = max(self._due.threshold // 2 - header, (self._due.threshold - header) // 3, 1)
        summary = max(min(LONGEST_SUMMARY, target // 4), 16)
        return RecastRoom(target=target, summary=summary, note=self._count(sample_note()))

    # The summary

    def _decide(self, summary_id: str) -> None:
        said = self._said
        for entry, extra in self._seen():
            told = self._told(entry, extra)
            found = decide(
                said.items, said.sizes, self._room, self.rules,
                summary_at=said.summary_at, told=told,
            )  # fmt: skip
            if found is None or not found.summarised:
                self.decision = found
                return
            if found.newest <= told:
                self.decision = found
                self.summary = self._summary_plan(entry, extra, summary_id)
                return
        if said.items:
            self.decision = decide(
                said.items, said.sizes, self._room, replace(self.rules, summarises=False)
            )

    def _told(self, entry: Entry | None, extra: Sequence[Item]) -> int:
        links = [(*link.input_items, *link.output_items) for link in chain(entry)]
        return sum(len(expanded(link)) for link in links) + len(expanded(extra))

    def _seen(self) -> Iterator[tuple[Entry | None, tuple[Item, ...]]]:
        """The items that whoever sums up may be shown, the best first: as much as can be of what is
        in the cache; where nothing but a summary is asked for, all. Calls have their outputs in it,
        and it fits."""
        plan = self.plan
        whole = (plan.parent, plan.input_items)
        held = [*self._held(plan.parent)]
        order = [whole, *held] if not self.rules.keeps_newest or not held else [*held, whole]
        if plan.parent is None:
            order += [(None, plan.input_items[:cut]) for cut in reversed(cuts(plan.input_items))]
        for entry, extra in order:
            if self._fits(entry, extra) and self._is_closed(entry, extra):
                yield entry, extra

    def _held(self, entry: Entry | None) -> Iterator[tuple[Entry | None, tuple[Item, ...]]]:
        for link in chain(entry):
            yield link, ()
            if link.output_items:
                yield link.parent, link.input_items

    def _is_closed(self, entry: Entry | None, extra: tuple[Item, ...]) -> bool:
        try:
            return not check_calls(entry, extra, complete=False)
        except errors.ApiError:
            return False

    def _fits(self, entry: Entry | None, extra: tuple[Item, ...]) -> bool:
        before = 0 if entry is None else entry.num_tokens
        asked = sum(map(self._count, (*extra, self._instruction())))
        whole = len(self.plan.header.ids) + before + asked + self._room.summary
        return bool(before or extra) and whole + 16 <= self._model.max_context_tokens

    def _instruction(self) -> Message:
        return instruction(self.plan.request, self._due.entry)

    def _summary_plan(
        self, entry: Entry | None, extra: tuple[Item, ...], summary_id: str
    ) -> TurnPlan:
        plan, items = self.plan, (*extra, self._instruction())
        start = Tail.START if entry is None else entry.tail
        write = self._model.renderer
        ids, tail = write.input(items, start, generate=True, options=plan.options)
        return replace(
            plan,
            response_id=summary_id,
            sums_up=plan.response_id,
            request=asking_for_summary(plan.request, self._room.summary),
            continued=entry,
            continued_id=None,
            parent=entry,
            rebuilt=entry is not None and not plan.header.same_tokens(entry.header),
            input_items=items,
            input_ids=ids,
            tail=tail,
            open_calls=frozenset(),
            max_output=self._room.summary,
            context_limited=False,
            grammar=None,
            banned_tokens=write.banned_tokens(thinking=plan.options.thinking, calls=False),
            comparison=None,
            last_turn=NO_LAST_TURN,
            checks=NO_CHECKS,
            frame_bytes=0,
            due=None,
            warnings=(),
        )

    def read(self, written: str, report: TurnReport) -> tuple[str | None, dict[str, Any]]:
        """The summary, if the model has written one to its end; and what it took."""
        return read_summary(written, self._instruction(), report)

    # The plan

    def _item(self, left: StandsFor, *, alone: bool) -> tuple[tuple[Item, ...], Compaction]:
        """The compaction, and the items that stay before it."""
        seal = self._model.seal.for_tenant(self.plan.tenant)
        if not alone:
            kind: CompactionKind = "inner" if self._due.inner else "whole"
            return (), seal.sealed(kind, left, self._item_id)
        assert left.summary_at is not None
        before = left.items[: left.summary_at]
        rest = StandsFor(items=left.items[left.summary_at :], summary_at=0)
        return before, seal.sealed("part", rest, self._item_id)

    def _behind(self, plan: TurnPlan, items: tuple[Item, ...]) -> TurnPlan:
        """The turn's plan with these items in the place of its whole context."""
        opening = plan.header.opening
        digest = ROOT_DIGEST if opening is None else roll(ROOT_DIGEST, opening)
        if self._due.inner:
            digest = plan.digest
        else:
            digest = roll_all(digest, items)
        only = plan.request.compacts != "no" or bool(
            self._due.entry is not None and self._due.entry.pause
        )
        if only:
            plan = replace(plan, request=plan.request.model_copy(update={"generate": False}))
        context = Context(
            parent=None, items=items, header=plan.header, open_calls=frozenset(), digest=digest
        )
        return self._fitting(
            replace(
                plan,
                rebuilt=True,
                continued_id=None,
                cut=True,
                due=None,
                left_out=NOTHING,
                grammar=None if only else plan.grammar,
                frame_bytes=0,
            ),
            context,
        )

    def _fitting(self, plan: TurnPlan, context: Context) -> TurnPlan:
        """The plan of that context, or of what truncation leaves of it if the request allows
        that."""
        request, model = plan.request, self._model
        most, least = model.max_context_tokens, 1 if plan.request.generate else 0
        found = self._rendered(plan, context)
        if found.prompt_tokens + least > most and request.truncation == "auto":
            window = Room(
                max_tokens=most,
                longest_token_bytes=model.longest_token_bytes,
                reply_tokens=min(request.max_output_tokens or most, most // 8) if least else 0,
            )
            for shorter in truncations(context, model.renderer, plan.options, window):
                warnings = (*plan.warnings, *shorter.cuts)
                cut = replace(plan, rebuilt=True, cut=True, warnings=warnings)
                found = self._rendered(cut, shorter)
                if found.prompt_tokens <= window.left_by_cut(len(plan.header.ids)):
                    break
        if found.prompt_tokens + least > most:
            raise errors.context_length_exceeded(found.prompt_tokens, most)
        left = most - found.prompt_tokens
        wanted = request.max_output_tokens
        wanted = self._service.limits.default_output_tokens if wanted is None else wanted
        return replace(
            found,
            max_output=min(wanted, left) if request.generate else 0,
            context_limited=wanted > left,
        )

    def _rendered(self, plan: TurnPlan, context: Context) -> TurnPlan:
        parent = context.parent
        ids, tail = self._model.renderer.input(
            context.items,
            Tail.START if parent is None else parent.tail,
            generate=plan.request.generate,
            options=plan.options,
        )
        return replace(
            plan,
            parent=parent,
            input_items=context.items,
            input_ids=ids,
            tail=tail,
            open_calls=context.open_calls,
            digest=context.digest,
            left_out=context.left_out,
        )

    def _report(self, decision: Decision, after: int) -> dict[str, Any]:
        said = self._said
        gone = decision.summarised
        return {
            "before": self.plan.prompt_tokens,
            "after": after,
            "cleared": [
                {"call_id": item.call_id, "tokens": said.sizes[place]}
                for place in decision.cleared
                if isinstance(item := said.items[place], CallOutput)
            ],
            "summarised": {
                "turns": _turns(said.items, gone),
                "tokens": sum(said.sizes[place] for place in gone),
            },
            "computed": 0,
            "cached": 0,
            "output": 0,
            "cost": 0.0,
            "from": self.plan.previous_response_id,
            **({} if self._prepared is None else self._prepared.cost | {"ahead": True}),
        }


def _turns(items: Sequence[Item], places: Sequence[int]) -> int:
    """Answers of the model among these places."""
    gone = set(places)
    return sum(
        place in gone and by_model(item) and (place == 0 or not by_model(items[place - 1]))
        for place, item in enumerate(items)
    )
