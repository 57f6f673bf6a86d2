"""How ``client.session`` makes a session of its arguments.

Always true: an argument of another kind is told at once, with its name.
"""

from collections.abc import Mapping
from typing import Any

from tools_api.sdk.chain import Chain
from tools_api.sdk.checks import check_budget, check_labels, check_name
from tools_api.sdk.connection import Connection
from tools_api.sdk.hooks import NO_HOOKS, Hooks
from tools_api.sdk.options import Budget, TurnOptions, check_options, wire_budget
from tools_api.sdk.session import AsyncSession
from tools_api.sdk.tool_runner import DEFAULT_MAX_PARALLEL_TOOLS, Equipment
from tools_api.sdk.tools import Approve


def new_session(
    connection: Connection,
    *,
    name: str | None,
    budget: Budget | None,
    labels: Mapping[str, str] | None,
    head: str | None,
    equipment: Equipment,
    defaults: TurnOptions,
) -> AsyncSession:
    """The session that ``client.session`` gives; its arguments are explained there."""
    check_name(name)
    check_budget(budget)
    check_labels(labels)
    check_options(defaults)
    chain = Chain(defaults=defaults, head=head, complete=head is None)
    whole = None if budget is None else wire_budget(budget)
    own = None if labels is None else dict(labels)
    if (name, whole, own) != (None, None, None):
        chain.set_keepwarm(session=name, budget=whole, labels=own)
    return AsyncSession(connection, chain, equipment)


def equipped(
    context: Any,
    approve: Approve | None,
    max_parallel_tools: int = DEFAULT_MAX_PARALLEL_TOOLS,
    hooks: Hooks | None = None,
) -> Equipment:
    """A session's arguments for its tools and hooks.

    Raises:
        TypeError: one is of another kind.
    """
    given = NO_HOOKS if hooks is None else hooks
    return Equipment(context=context, approve=approve, max_parallel=max_parallel_tools, hooks=given)
