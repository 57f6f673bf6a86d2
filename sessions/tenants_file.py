"""The file that says who may ask for how much: keys by their digests, and tenants, in TOML.

    [[keys]]
    name = "ci"
    sha256 = "6ca13d52ca70c883e0f0bb101e425a89e8624de51db2d2392593af6a84118090"
    tenant = "acme"
    role = "tenant"          # or "operator", "read-only"

    [tenants.acme]
    turns_per_minute = 60
    connections = 8
    budget = [{ cost = 250.0 }, { cost = 25.0, every = "month", warn_at = 0.8 }]
    prices = { input = 0.20, cached = 0.02, output = 1.00 }

Always true: a file is taken whole or not at all, and no message quotes a value that may be a
key.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from runtime.folder_files import UnfitFile, read_named, read_within
from sessions.tenants import (
    ApiKey,
    BudgetTerms,
    KeyFileError,
    Principal,
    Role,
    TenantPolicy,
    TokenPrices,
)
from tools_api.limits import DEFAULT_LIMITS
from tools_api.requests import Bounds

_HEX_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantsFile:
    """The content of a file of keys."""

    keys: tuple[ApiKey, ...]
    policies: Mapping[str, TenantPolicy] = field(default_factory=dict)
    """Policies, by the tenant's name."""


class _Budget(Bounds):
    """Bounds, for how long they hold, and from when on their spending is told."""

    every: Literal["day", "month"] | None = None
    warn_at: Annotated[float, Field(gt=0, le=1)] | None = None

    def terms(self) -> BudgetTerms:
        bounds = Bounds(**{name: getattr(self, name) for name in Bounds.model_fields})
        return BudgetTerms(bounds=bounds, every=self.every, warn_at=self.warn_at)


def _listed(given: object) -> object:
    return tuple(given) if isinstance(given, list) else (given,)


_Budgets = Annotated[tuple[_Budget, ...], BeforeValidator(_listed), Field(max_length=4)]
"""One budget, or an array of budgets."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    sha256: str
    tenant: str
    role: Annotated[Role, Field(strict=False)] = Role.TENANT
    budget: _Budgets = ()


_Bound = Annotated[int, Field(ge=1, le=1_000_000_000)]


_Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class _Prices(BaseModel):
    """Dollars per million tokens, by the names that price files have for them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: _Price
    cached: _Price
    output: _Price
    reasoning: _Price | None = None

    def exact(self) -> TokenPrices:
        """The number in the file to the last digit. Raises KeyFileError: finer than is reckoned."""
        reasoning = self.reasoning
        return TokenPrices(
            input_uncached=_nano(self.input),
            input_cached=_nano(self.cached),
            output=_nano(self.output),
            reasoning=None if reasoning is None else _nano(reasoning),
        )


def _nano(dollars: float) -> int:
    nano = Decimal(repr(dollars)) * 1_000_000_000
    if nano != int(nano):
        raise KeyFileError(
            "prices: a price is finer than a billionth of a dollar per million tokens"
        )
    return int(nano)


class _TenantTable(BaseModel):
    """Each field is one of ``TenantPolicy``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    models: Annotated[list[str], Field(min_length=1, max_length=256)] | None = None
    turns_per_minute: _Bound | None = None
    tokens_per_minute: _Bound | None = None
    budget: _Budgets = ()
    prices: _Prices | None = None
    connections: _Bound | None = None

    def policy(self) -> TenantPolicy:
        models = None if self.models is None else frozenset(self.models)
        return TenantPolicy(
            models=models,
            turns_per_minute=self.turns_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            budget=_in_all(self.budget),
            warn_at=next((each.warn_at for each in self.budget if each.every is None), None),
            periods=_others(self.budget),
            prices=None if self.prices is None else self.prices.exact(),
            connections=self.connections,
        )


def _in_all(budgets: Sequence[_Budget]) -> Bounds:
    """The tenant's budget for ever."""
    found = [each for each in budgets if each.every is None]
    return found[0].terms().bounds if found else Bounds()


def _others(budgets: Sequence[_Budget]) -> tuple[BudgetTerms, ...]:
    """The budgets by day and month."""
    if len({each.every for each in budgets}) < len(budgets):
        raise KeyFileError("budget: more than one of a day, a month or for ever")
    return tuple(each.terms() for each in budgets if each.every is not None)


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    keys: list[_Row] = []
    tenants: dict[str, _TenantTable] = {}


def read_tenants_file(path: Path, *, wait: bool = True) -> TenantsFile:
    """Read a file.

    Args:
        wait: whether a pipe is waited for, a while.

    Raises:
        KeyFileError: it cannot be read, has an unknown or a bad entry, a key or a name twice,
            no key at all or too many. The message names the file and the entry.
    """
    try:
        text = _text(path, wait)
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise KeyFileError(f"not TOML: {error}") from None
        return _read(document)
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}") from None


def key_row(key: ApiKey) -> str:
    """The rows of the file that stand for ``key``."""
    who = key.principal
    return (
        f'[[keys]]\nname = "{who.key_name}"\nsha256 = "{key.sha256.hex()}"\n'
        f'tenant = "{who.tenant}"\nrole = "{who.role}"\n'
    )


def _text(path: Path, wait: bool) -> str:
    try:
        read = read_named if wait else partial(read_within, wait_s=0.0)
        return read(path, DEFAULT_LIMITS.max_tenants_file_bytes).decode()
    except FileNotFoundError as error:
        raise KeyFileError(f"cannot read it: {error.strerror}") from error
    except UnfitFile as error:
        raise KeyFileError(f"cannot read it: {error.reason}") from error
    except UnicodeDecodeError:
        raise KeyFileError("cannot read it: not UTF-8") from None


def _checked(keys: Iterable[ApiKey]) -> tuple[ApiKey, ...]:
    found = tuple(keys)
    most = DEFAULT_LIMITS.max_keys
    if not found:
        raise KeyFileError("holds no key")
    if len(found) > most:
        raise KeyFileError(f"holds {len(found)} keys, at most {most} are possible")
    return found


def _read(text: dict[str, Any]) -> TenantsFile:
    try:
        document = _Document.model_validate(text)
    except ValidationError as error:
        raise KeyFileError(_complaint(error)) from None
    keys = _checked(_keys(document.keys))
    policies = {name: _policy(name, table) for name, table in document.tenants.items()}
    for row in document.keys:
        if row.budget:
            policy = policies.get(row.tenant, TenantPolicy())
            own = {**policy.keys, row.name: _of_key(row)}
            policies[row.tenant] = replace(policy, keys=own)
    for name in policies.keys() - {key.principal.tenant for key in keys}:
        raise KeyFileError(f"tenants {name}: no key belongs to a tenant of that name")
    return TenantsFile(keys=keys, policies=policies)


def _policy(name: str, table: _TenantTable) -> TenantPolicy:
    try:
        return table.policy()
    except KeyFileError as error:
        raise KeyFileError(f"tenants {name} {error}") from None


def _of_key(row: _Row) -> tuple[BudgetTerms, ...]:
    if len({each.every for each in row.budget}) < len(row.budget):
        raise KeyFileError(f"key {row.name}: budget: more than one of a day, a month or for ever")
    return tuple(each.terms() for each in row.budget)


def _keys(rows: Iterable[_Row]) -> list[ApiKey]:
    keys: list[ApiKey] = []
    for number, row in enumerate(rows, start=1):
        try:
            key = _key(row)
            _refuse_double(key, keys)
        except KeyFileError as error:
            raise KeyFileError(f"key {number}: {error}") from None
        keys.append(key)
    return keys


def _key(row: _Row) -> ApiKey:
    if not _HEX_DIGEST.fullmatch(row.sha256):
        raise KeyFileError("sha256 is not 64 hexadecimal digits")
    principal = Principal(tenant=row.tenant, role=row.role, key_name=row.name)
    return ApiKey(sha256=bytes.fromhex(row.sha256), principal=principal)


def _refuse_double(key: ApiKey, before: Iterable[ApiKey]) -> None:
    for other in before:
        if key.sha256 == other.sha256:
            raise KeyFileError("this key stands in the file twice")
        if key.principal.key_name == other.principal.key_name:
            raise KeyFileError(f"the name {key.principal.key_name!r} stands in the file twice")


def _complaint(error: ValidationError) -> str:
    """The first thing that is wrong: where, and what was expected; never what was found."""
    first = error.errors(include_input=False, include_url=False)[0]
    places = [f"{part + 1}" if isinstance(part, int) else str(part) for part in first["loc"]]
    where = " ".join(places).replace("keys ", "key ", 1)
    if first["type"] == "extra_forbidden":
        return f"{where} is unknown; known: {', '.join(_known(first['loc']))}"
    if first["type"] == "missing":
        return f"{where} is missing"
    message = first["msg"].removeprefix("Input should be ")
    return f"{where} should be {message}"


def _known(place: tuple[int | str, ...]) -> Iterable[str]:
    if len(place) == 1:
        return _Document.model_fields
    if "budget" in place[2:-1]:
        return _Budget.model_fields
    if "prices" in place[2:-1]:
        return _Prices.model_fields
    return (_Row if place[0] == "keys" else _TenantTable).model_fields
