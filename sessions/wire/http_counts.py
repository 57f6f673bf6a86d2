"""A prompt's length over HTTP: counted as the turn would count it, and nothing runs.

What the request continues is found as for a turn, in the journal too where memory lacks it.

Always true: nothing is claimed, and no session is made or taken in.
"""

from collections.abc import Sequence
from functools import partial

from sessions.durable.store import ConnectionStore
from sessions.durable.tenant import Tenant
from sessions.journal.errors import JournalError
from sessions.turns.continuing import Lineage, find_parent
from sessions.turns.memory import Memory
from sessions.turns.planning import count_prompt, takes_long
from sessions.turns.recollection import journal_error
from sessions.turns.references import digested
from sessions.turns.service import Service
from sessions.turns.wanted import Recalled, Wanted
from sessions.wire.hub import Hub
from tools_api.requests import CreateRequest


async def count_tokens(
    request: CreateRequest,
    *,
    hub: Hub,
    service: Service,
    visible: ConnectionStore,
    num_bytes: int,
    digests: Sequence[bytes] | None,
) -> int:
    """Tokens that the model would read.

    Args:
        num_bytes: of the request's body.
        digests: of each prefix of its input, if they are known.

    Raises:
        ApiError: what a turn would be refused for.
    """
    tenant = visible.tenant
    fault = service.fault_of_model(tenant, request.model)
    if fault is not None:
        raise fault
    memory = Memory(visible, service, ask=partial(_recall, hub, tenant), claims=False)
    if request.references:
        request, brought = await memory.with_items(request)
        num_bytes += brought
        digests = (await hub.beside(tenant.name, partial(digested, request))).digests
    parent, items = await find_parent(request, memory, digests)
    lineage = Lineage(parent=parent, session=None, session_name="", items=items)
    work = partial(
        count_prompt, request, lineage, service.model, service.model.seal.for_tenant(tenant.name)
    )
    if takes_long(service, request, lineage, num_bytes):
        return await hub.beside(tenant.name, work)
    return work()


async def _recall(hub: Hub, tenant: Tenant, wanted: Wanted) -> Recalled:
    assert hub.journal is not None
    try:
        recalled = await hub.journal.recall(tenant, wanted)
    except JournalError as error:
        raise journal_error(error) from error
    hub.journal.remember(tenant, recalled)
    return recalled
