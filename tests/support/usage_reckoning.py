"""Sums of usage by the words of the documents, record by record: too simple to be wrong."""

from collections import defaultdict
from collections.abc import Iterable

from sessions.durable.usage_keys import NONE
from sessions.journal.records import TurnRecord
from sessions.journal.usage import UsageSums, sums_of
from sessions.journal.usage_reading import UsageAsked, UsagePlace, month_starts

HOUR_S = 3600
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
