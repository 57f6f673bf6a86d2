"""What ``anthropic`` publishes of ``/v1/messages``: types of tools, blocks, edits, and fields."""

import json
import types
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from anthropic.types import beta
from anthropic.types.beta.beta_context_management_config_param import Edit
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from typing_extensions import is_typeddict


def members(hint: Any) -> list[Any]:
    """The typed dictionaries that a hint allows, in unions and arrays too."""
    if is_typeddict(hint):
        return [hint]
    if get_origin(hint) in (Annotated, Required, NotRequired):
        return members(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType) or get_args(hint):
        return [member for inner in get_args(hint) for member in members(inner)]
    return []


def kinds(hint: Any) -> list[str]:
    """The types of these, as they are sent; of one that may leave it out, its own as well."""
    found: set[str] = set()
    for member in members(hint):
        hints = get_type_hints(member)
        found |= set(literals(hints.get("type")))
    return sorted(found)


def literals(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [value for value in get_args(hint) if isinstance(value, str)]
    return [value for inner in get_args(hint) for value in literals(inner)]


FIELDS = get_type_hints(MessageCreateParamsBase)
CONTENT = {
    get_args(hints["role"])[0] if get_args(hints["role"]) else "": kinds(hints["content"])
    for hints in map(get_type_hints, members(beta.BetaMessageParam))
}
print(
    json.dumps(
        {
            "fields": sorted(FIELDS),
            "tools": kinds(FIELDS["tools"]),
            "tool_choices": kinds(FIELDS["tool_choice"]),
            "blocks": CONTENT,
            "results": kinds(get_type_hints(beta.BetaToolResultBlockParam)["content"]),
            "edits": kinds(Edit),
        }
    )
)
