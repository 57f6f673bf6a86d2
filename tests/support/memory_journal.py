"""A journal that ends with its process, which the others are compared with.

Always true: it keeps every promise of ``Journal`` except that of lasting.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sessions.durable.call_states import CallState
from sessions.durable.conversations import Conversation, moved
from sessions.durable.item_ids import item_with_id
from sessions.journal.encoding import (
    HeaderCache,
    decode_links,
    decode_turn,
    encode_turn,
    link_items,
)
from sessions.journal.errors import JournalDamaged, JournalParentGone
from sessions.journal.listing import ListAsked, ListedSession, ListPlace
from sessions.journal.records import (
    NO_TURNS,
    SessionRecord,
    SpendTotal,
    StoredTurn,
    TurnRecord,
    new_session,
    options_kept,
    session_account,
    tree_account,
)
from sessions.journal.samples import KEPT, Sample
from sessions.journal.usage import UsageSums
from sessions.journal.usage_reading import UsageAsked, UsagePlace, UsageRow
from tests.support.usage_reckoning import reckoned, sum_of
from tools_api import errors


@dataclass(slots=True)
class _Tenant:
    turns: dict[str, StoredTurn] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    requests: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    accounts: dict[str, SpendTotal] = field(default_factory=dict)
    reservations: dict[str, TurnRecord] = field(default_factory=dict)
    calls: dict[str, dict[str, CallState]] = field(default_factory=dict)


class MemoryJournal:
    """One server's; not thread-safe."""

    shared = False
    ownership = None
    damage = None

    def __init__(self, fingerprint: bytes = b"") -> None:
        self.fingerprint = fingerprint
        self._tenants: dict[str, _Tenant] = {}
        self._headers: dict[bytes, bytes] = {}
        self._cache = HeaderCache()
        self._samples: dict[tuple[int, str, int], Sample] = {}
        self._records: list[TurnRecord] = []
        self._conversations: dict[tuple[str, str], Conversation] = {}

    def look(self) -> None:
        """It can always be written."""

    def append(
        self, turns: Sequence[TurnRecord], reserved: Sequence[TurnRecord] = ()
    ) -> list[bool]:
        new = {(record.tenant, record.response_id) for record in turns}
        for record in turns:
            known, base = self._tenant(record.tenant).turns, record.base_id
            if not (base is None or base in known or (record.tenant, base) in new):
                raise JournalParentGone(f"response {base} has been deleted")
            self._move(record)
        for record in turns:
            self._append(record)
        self.reserve(reserved)
        return [True] * len(turns)

    def _move(self, record: TurnRecord) -> None:
        read = record.conversation
        found = None if read is None else self.conversation(record.tenant, read.id)
        if read is None or found is None or record.entry is None:
            return
        conversation = moved(found, read, record.response_id, record.entry)
        if conversation is None:
            raise JournalParentGone(f"conversation {found.id} was edited")
        self._conversations[record.tenant, found.id] = conversation

    def conversation(self, tenant: str, id_: str) -> Conversation | None:
        return self._conversations.get((tenant, id_))

    def put_conversation(
        self, tenant: str, conversation: Conversation, *, version: int | None
    ) -> bool:
        found = self.conversation(tenant, conversation.id)
        if version != (None if found is None else found.version):
            return False
        self._conversations[tenant, conversation.id] = conversation
        return True

    def delete_conversation(self, tenant: str, id_: str) -> bool:
        return self._conversations.pop((tenant, id_), None) is not None

    def _append(self, record: TurnRecord) -> None:
        tenant = self._tenant(record.tenant)
        if record.response_id in tenant.turns:
            return
        self._records.append(record)
        for entry in record.links:
            digest, body = self._cache.encoded(entry.header)
            self._headers[digest] = body
        session = tenant.sessions.get(record.session) or new_session(record.tenant, record.session)
        name = session_account(record.session)
        if record.follows_turns and not session.head_seq:  # deleted meanwhile
            for above in {*record.accounts} - {name, tree_account(record.session)}:
                tenant.accounts[above] = tenant.accounts.get(above, SpendTotal()).plus(record)
            return
        for account in (name, *record.accounts):
            tenant.accounts[account] = tenant.accounts.get(account, SpendTotal()).plus(record)
        tenant.reservations.pop(record.response_id, None)
        seq = session.head_seq + 1
        tenant.turns[record.response_id] = StoredTurn(
            tenant=record.tenant,
            session=record.session,
            seq=seq,
            response_id=record.response_id,
            parent_id=record.parent_id,
            base_id=record.base_id,
            request_id=record.request_id,
            continuable=record.entry is not None,
            digest=record.digest,
            fingerprint=self.fingerprint,
            created_s=record.created_s,
            body=encode_turn(record, self._cache),
        )
        if record.private:
            tenant.hidden.add(record.response_id)
        if record.request_id is not None:
            tenant.requests[record.request_id] = record.response_id
        tenant.sessions[record.session] = replace(
            session,
            head_id=session.head_id if record.entry is None else record.response_id,
            head_seq=seq,
            turns_begun=max(session.turns_begun, record.number),
            open_calls=session.open_calls if record.open_calls is None else record.open_calls,
            updated_s=max(session.updated_s, record.created_s)
            if record.is_turn or not session.updated_s
            else session.updated_s,
            options=record.options_after(session.options),
            account=tenant.accounts[name],
        )

    def reserve(self, reserved: Sequence[TurnRecord]) -> None:
        for record in reserved:
            held = self._tenant(record.tenant).reservations
            if record.holds:
                held[record.response_id] = record
            else:
                held.pop(record.response_id, None)

    def reservations(self, tenant: str, session: str) -> list[TurnRecord]:
        held = self._tenant(tenant).reservations.values()
        mine = [record for record in held if record.session == session]
        return sorted(mine, key=lambda record: record.number)

    def settle_left(self) -> list[TurnRecord]:
        left = [held for state in self._tenants.values() for held in state.reservations.values()]
        for record in left:
            requests = self._tenant(record.tenant).requests
            taken = record.request_id in requests
            self._append(replace(record, request_id=None) if taken else record)
        return left

    def session_running(
        self, tenant: str, request_id: str | None, response_id: str | None
    ) -> str | None:
        held = self._tenant(tenant).reservations.values()
        if request_id is not None:
            return next((each.session for each in held if each.request_id == request_id), None)
        return next((each.session for each in held if each.response_id == response_id), None)

    def claim(self, tenant: str, session: str, wait_s: float) -> SessionRecord | None:
        del wait_s
        return self.session(tenant, session)

    def release(self, tenant: str, sessions: Sequence[str], *, unasked: bool = False) -> None:
        del tenant, sessions, unasked

    def session(self, tenant: str, name: str) -> SessionRecord | None:
        return self._tenant(tenant).sessions.get(name)

    def account(self, tenant: str, name: str) -> SpendTotal:
        return self._tenant(tenant).accounts.get(name, SpendTotal())

    def accounts_named(self, name: str) -> dict[str, SpendTotal]:
        states = self._tenants.items()
        return {tenant: s.accounts[name] for tenant, s in states if name in s.accounts}

    def accounts_of_policies(self) -> dict[tuple[str, str], SpendTotal]:
        return {
            (tenant, name): account
            for tenant, state in self._tenants.items()
            for name, account in state.accounts.items()
            if name.startswith(("tenant/", "key/"))
        }

    def clock_s(self) -> float:
        return 1_800_000_000.0

    def turn(self, tenant: str, response_id: str) -> StoredTurn | None:
        state = self._tenant(tenant)
        found = state.turns.get(response_id)
        seen = found is not None and found.continuable and response_id not in state.hidden
        return found if seen else None

    def ended_turn(self, tenant: str, response_id: str) -> StoredTurn | None:
        state = self._tenant(tenant)
        return None if response_id in state.hidden else state.turns.get(response_id)

    def turn_of_request(self, tenant: str, request_id: str) -> StoredTurn | None:
        state = self._tenant(tenant)
        return state.turns.get(state.requests.get(request_id, ""))

    def turns_with_digest(self, tenant: str, digest: bytes, most: int) -> list[StoredTurn]:
        state = self._tenant(tenant)
        twins = [
            turn
            for turn in state.turns.values()
            if turn.digest == digest and turn.response_id not in state.hidden
        ]
        return twins[::-1][:most]

    def turns_with_item(self, tenant: str, item_id: str, most: int) -> list[StoredTurn]:
        state = self._tenant(tenant)
        holders = [
            turn
            for turn in state.turns.values()
            if turn.continuable and turn.response_id not in state.hidden
            for link in decode_links(turn)
            if item_with_id(link_items(link), item_id) is not None
        ]
        return holders[::-1][:most]

    def deleted(
        self, tenant: str, response_ids: Sequence[str], item_ids: Sequence[str]
    ) -> frozenset[str]:
        gone = set(response_ids) & self._tenant(tenant).hidden
        return frozenset(gone | {i for i in item_ids if not self.turns_with_item(tenant, i, 1)})

    def chain(
        self, tenant: str, response_id: str, known: Callable[[str], bool] = lambda _: False
    ) -> list[StoredTurn]:
        turn = self.turn(tenant, response_id)
        turns: list[StoredTurn] = []
        while turn is not None:
            turns.append(turn)
            base = turn.base_id
            if base is None or known(base):
                break
            turn = self._tenant(tenant).turns.get(base)
            if turn is None:
                raise JournalDamaged(f"response {base}, which others stand on, is missing")
        return turns[::-1]

    def header(self, digest: bytes) -> bytes:
        return self._headers[digest]

    def session_turns(self, tenant: str, session: str) -> list[StoredTurn]:
        return [turn for turn in self._tenant(tenant).turns.values() if turn.session == session]

    def last_turns(self, tenant: str, session: str, most: int) -> tuple[int, list[StoredTurn]]:
        turns = self.session_turns(tenant, session)
        return len(turns), turns[::-1][:most]

    def sessions(self, tenant: str | None = None) -> list[SessionRecord]:
        names = list(self._tenants) if tenant is None else [tenant]
        found = [record for name in names for record in self._tenant(name).sessions.values()]
        return sorted(found, key=lambda record: -record.updated_s)

    def hide(self, tenant: str, response_id: str) -> bool:
        turn = self.ended_turn(tenant, response_id)
        if turn is None:
            return False
        if not turn.continuable and decode_turn(turn).status in NO_TURNS:
            return False
        self._tenant(tenant).hidden.add(response_id)
        self._tenant(tenant).turns[response_id] = turn._replace(deleted=True)
        self._mend_heads(tenant)
        return True

    def call_states(self, tenant: str, response_id: str) -> dict[str, CallState]:
        return dict(self._tenant(tenant).calls.get(response_id, {}))

    def change_call(
        self,
        tenant: str,
        response_id: str,
        call_id: str,
        change: Callable[[CallState], CallState],
        session: str | None = None,
    ) -> CallState | None:
        state = self._tenant(tenant)
        if self.turn(tenant, response_id) is None:
            return None
        known = None if session is None else state.sessions.get(session)
        if session is not None and (known is None or known.head_id != response_id):
            raise errors.call_not_open(session, response_id)
        states = state.calls.setdefault(response_id, {})
        states[call_id] = change(states.get(call_id, CallState(call_id=call_id)))
        return states[call_id]

    def delete_session(self, tenant: str, name: str) -> tuple[str, ...]:
        state = self._tenant(tenant)
        before = {record.name: record.head_id for record in state.sessions.values()}
        gone = {turn.response_id for turn in state.turns.values() if turn.session == name}
        while more := {
            turn.response_id
            for turn in state.turns.values()
            if turn.base_id in gone and turn.response_id not in gone
        }:
            gone |= more
        self._remove(state, gone)
        self._forget(state, name)
        self._mend_heads(tenant)
        after = state.sessions
        return tuple(sorted(n for n in after if before[n] != after[n].head_id))

    def expire(self, before_s: float) -> int:
        count = 0
        for name, state in self._tenants.items():
            kept = {turn.response_id for turn in state.turns.values() if turn.created_s >= before_s}
            todo = list(kept)
            while todo:
                base = state.turns[todo.pop()].base_id
                if base is not None and base not in kept:
                    kept.add(base)
                    todo.append(base)
            gone = set(state.turns) - kept
            self._remove(state, gone)
            count += len(gone)
            used = {turn.session for turn in state.turns.values()}
            used |= {held.session for held in state.reservations.values()}
            used |= {each.name for each in state.sessions.values() if each.updated_s >= before_s}
            trees = {name for held in state.reservations.values() for name in held.accounts}
            used |= {name for name in state.sessions if tree_account(name) in trees}
            for session in list(state.sessions.values()):
                above: SessionRecord | None = session if session.name in used else None
                while above is not None:
                    used.add(above.name)
                    above = state.sessions.get(options_kept(above.options).parent or "")
            for session in list(state.sessions.values()):
                if session.name not in used:
                    self._forget(state, session.name)
            self._mend_heads(name)
        return count

    def keep_samples(self, kept: Sequence[Sample]) -> None:
        for each in kept:
            self._samples[each.width_s, each.tenant, each.number] = each
        for width_s in {each.width_s for each in kept}:
            oldest = max(each.number for each in kept if each.width_s == width_s) - KEPT[width_s]
            for key in [k for k in self._samples if k[0] == width_s and k[2] <= oldest]:
                del self._samples[key]

    def samples(self, tenant: str, width_s: int, first: int, *, own: bool) -> list[Sample]:
        found = [
            each
            for (width, owner, number), each in self._samples.items()
            if own and width == width_s and owner == tenant and number >= first
        ]
        return sorted(found, key=lambda each: each.number)

    def listed(
        self, asked: ListAsked, after: ListPlace | None, most: int
    ) -> tuple[list[ListedSession], int | None]:
        found = self._all_listed(asked)
        behind = [e for e in found if after is None or e.place.sorted_by > after.sorted_by]
        return behind[:most], len(found)

    def listed_among(
        self, asked: ListAsked, names: Iterable[tuple[str, str]]
    ) -> list[ListedSession]:
        wanted = set(names)
        return [each for each in self._all_listed(asked) if each.place[1:] in wanted]

    def session_tree(self, tenant: str, name: str, most: int) -> list[tuple[int, ListedSession]]:
        everyone = {e.record.name: e for e in self._all_listed(ListAsked(tenant=tenant))}
        found: list[tuple[int, ListedSession]] = []

        def walk(name: str, depth: int) -> None:
            found.append((depth, everyone[name]))
            for each in everyone.values():
                if options_kept(each.record.options).parent == name:
                    walk(each.record.name, depth + 1)

        if name in everyone:
            walk(name, 0)
        return found[:most]

    def _all_listed(self, asked: ListAsked) -> list[ListedSession]:
        """By the words of the documents, session by session."""
        found = []
        for record in self.sessions(asked.tenant):
            mine = [
                e for e in self._records if (e.tenant, e.session) == (record.tenant, record.name)
            ]
            failed = sum(each.status == "failed" for each in mine)
            again = sum(each.computed_again for each in mine)
            kept, usage = options_kept(record.options), record.account.usage
            bounded, above = False, kept
            while not bounded:
                bounded = any(any(b.bounds() for b in pair) for pair in above.budgets.values())
                parent = self.session(record.tenant, above.parent or "")
                if parent is None:
                    break
                above = options_kept(parent.options)
            ms = round(record.updated_s * 1000)
            if (
                asked.search
                not in "\n".join([record.name, *(f"{k}:{v}" for k, v in kept.labels)]).casefold()
                or (asked.failed and not failed)
                or (asked.bounded and not bounded)
                or (asked.several and record.turns_begun < 2)
                or not set(asked.labels) <= set(kept.labels)
                or not (asked.from_ms or 0) <= ms < (asked.to_ms or 1 << 62)
            ):
                continue
            missing = usage.input_tokens - usage.cached_tokens
            key = {
                "recent": ms,
                "cost": record.account.cost,
                "again": again,
                "hit": 1 + missing * 1_000_000 // usage.input_tokens if usage.input_tokens else 0,
            }[asked.order]
            listed = ListedSession(
                place=ListPlace(key, record.tenant, record.name),
                record=replace(record, failed=failed, computed_again=again),
                tree=self.account(record.tenant, tree_account(record.name)),
            )
            found.append(listed)
        return sorted(found, key=lambda each: each.place.sorted_by)

    def usage(
        self, asked: UsageAsked, after: UsagePlace | None, most: int
    ) -> tuple[list[UsageRow], UsageSums]:
        found = reckoned(self._records, asked)
        rows = [UsageRow(place, found[place]) for place in sorted(found)]
        behind = [row for row in rows if after is None or row.place > after]
        return behind[:most], sum_of(row.sums for row in rows)

    def usage_labels(self, tenant: str | None) -> list[str]:
        mine = (each for each in self._records if tenant in (None, each.tenant))
        return sorted({name for each in mine for name, _ in each.keys.labels})

    def cursor_secret(self) -> bytes:
        return b"memory"

    def close(self) -> None:
        """Nothing is left to be done."""

    def _forget(self, state: _Tenant, session: str) -> None:
        state.sessions.pop(session, None)
        for account in (session_account(session), tree_account(session)):
            state.accounts.pop(account, None)
        for held in [held for held in state.reservations.values() if held.session == session]:
            del state.reservations[held.response_id]

    def _remove(self, state: _Tenant, gone: set[str]) -> None:
        for response_id in gone:
            turn = state.turns.pop(response_id)
            state.calls.pop(response_id, None)
            state.hidden.discard(response_id)
            if turn.request_id is not None:
                state.requests.pop(turn.request_id, None)

    def _mend_heads(self, tenant: str) -> None:
        """A session whose head is gone has none: what only names it begins anew."""
        sessions = self._tenant(tenant).sessions
        for record in list(sessions.values()):
            if record.head_id is not None and self.turn(tenant, record.head_id) is None:
                sessions[record.name] = replace(record, head_id=None)

    def _tenant(self, name: str) -> _Tenant:
        return self._tenants.setdefault(name, _Tenant())
