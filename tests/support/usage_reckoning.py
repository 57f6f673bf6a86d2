"""Sums of usage by the words of the documents, record by record: too simple to be wrong."""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from sessions.durable.ledger import TurnUsage
from sessions.durable.usage_keys import NONE, UsageKeys
from sessions.journal.records import RESIDENCY, TENANT_ACCOUNT, TurnRecord
from sessions.journal.usage import UsageSums, sums_of
from sessions.journal.usage_reading import UsageAsked, UsagePlace, month_starts
from tests.support.journals import record

HOUR_S = 3600
START_S = 1_767_000_000
"""2025-12-29: months and a year end behind it."""
EMPTY = UsageSums()


def sum_of(several: Iterable[UsageSums]) -> UsageSums:
    """Of all."""
    total = EMPTY
    for each in several:
        total = total.plus(each)
    return total


def _values(each: TurnRecord, query: UsageAsked) -> list[tuple[str, UsageSums]]:
    """What a record adds to which values of a group, by the words of the documents."""
    sums, tools = sums_of(each), each.keys.tools
    if query.group == "tool" and tools:
        found = []
        for number, tool in enumerate(tools):
            part = [count // len(tools) for count in sums]
            if number == 0:
                part = [
                    count - own * (len(tools) - 1) for count, own in zip(sums, part, strict=True)
                ]
            found.append((tool, UsageSums(*part)._replace(calls=1)))
        return found
    value = {
        "": "",
        "tool": NONE,
        "tenant": each.tenant,
        "key": each.keys.key,
        "model": each.keys.model,
        "label": dict(each.keys.labels).get(query.label, NONE),
    }[query.group]
    return [(value, sums)]


def reckoned(records: Iterable[TurnRecord], query: UsageAsked) -> dict[UsagePlace, UsageSums]:
    """The sums of the records by bucket and value; a record is of the hour of its end."""
    found = defaultdict[UsagePlace, UsageSums](UsageSums)
    months = month_starts(0, query.end_hour)
    for each in records:
        hour = round(each.created_s * 1000) // (HOUR_S * 1000)
        if not query.first_hour <= hour < query.end_hour:
            continue
        if query.tenant not in (None, each.tenant):
            continue
        start = {"1h": hour, "1d": hour // 24 * 24, "1mo": max(m for m in months if m <= hour)}
        for value, sums in _values(each, query):
            place = UsagePlace(start[query.bucket], value)
            found[place] = found[place].plus(sums)
    return dict(found)


def drawn(rng: random.Random, number: int) -> TurnRecord:
    """A random ended turn, or a charge beside turns."""
    tenant = rng.choice("ab")
    made = record(
        f"r{number}",
        tenant=tenant,
        session=f"s{rng.randrange(5)}",
        said=rng.random() < 0.8,
        created_s=START_S + rng.randrange(100 * 24 * HOUR_S) + rng.random(),
        accounts=(TENANT_ACCOUNT,),
    )
    output = rng.randrange(500)
    used = TurnUsage(
        input_tokens=rng.randrange(1000, 2000),
        cached_tokens=rng.randrange(1000),
        output_tokens=output,
        reasoning_tokens=rng.randrange(output + 1),
        forced_tokens=rng.randrange(output + 1),
        residency=rng.randrange(10**9),
    )
    labels = tuple((name, rng.choice(("x", "ü#&=%", "<b>"))) for name in "lm" if rng.random() < 0.5)
    keys = UsageKeys(
        key=rng.choice(("k1", "k2")),
        model=rng.choice(("m", "n")),
        labels=labels,
        tools=tuple(rng.choices(("grep", "ls", "make"), k=rng.randrange(4))),
    )
    made = replace(made, usage=used, cost=rng.randrange(10**12), saved=rng.randrange(10**9))
    if rng.random() < 0.1:
        made = replace(made, status=RESIDENCY, links=(), base_id=None, reason=None, terminal=b"")
        keys = keys.without_tools()
    return replace(made, keys=keys)


def asked(group: str = "", **more: object) -> UsageAsked:
    """All that ``drawn`` makes."""
    first = START_S // HOUR_S
    fields: dict[str, object] = {"first_hour": first, "end_hour": first + 101 * 24, "bucket": "1mo"}
    return UsageAsked(group=group, **(fields | more))  # type: ignore[arg-type]
