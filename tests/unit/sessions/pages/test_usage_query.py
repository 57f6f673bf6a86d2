"""Queries of usage: what is asked for, and what is refused by its name."""

from urllib.parse import urlencode

import pytest
from websockets.datastructures import Headers

from sessions.http.message import HttpRequest
from sessions.journal.usage_reading import UsageAsked
from sessions.pages.usage_query import UsageQuery, read_usage_query
from sessions.tenants import Principal, Role
from tools_api.errors import ApiError

NOW_S = 20_000 * 86_400 + 5 * 3600 + 17
OPERATOR = Principal(tenant="ops", role=Role.OPERATOR)
TENANT = Principal(tenant="acme")


def read(who: Principal = OPERATOR, accept: str = "", **parameters: str) -> UsageQuery:
    named = {name.rstrip("_"): value for name, value in parameters.items()}
    headers = Headers({"Accept": accept} if accept else {})
    target = f"/v1/usage?{urlencode(named)}"
    return read_usage_query(HttpRequest(method="GET", target=target, headers=headers), who, NOW_S)


def test_without_parameters_it_is_the_last_days_up_to_now() -> None:
    query = read()
    assert query.asked == UsageAsked(
        first_hour=(20_000 - 30) * 24, end_hour=20_000 * 24 + 6, bucket="1d"
    )
    assert (query.format, query.group_by, query.cursor) == ("json", "", "")


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2026-11-01", 498_192),
        ("2026-11-01T14:00Z", 498_206),
        ("2026-11-01T14:00:00+00:00", 498_206),
        ("2026-11-01 14:00", 498_206),
        (str(498_206 * 3600), 498_206),
        ("0", 0),
    ],
)
def test_times_are_read(text: str, hour: int) -> None:
    assert read(from_=text, to="2026-11-02", bucket="1mo").asked.first_hour == hour


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"from_": "yesterday"}, "from"),
        ({"from_": "2026-02-30"}, "from"),
        ({"from_": "2026-11-01T14:30Z"}, "from"),
        ({"from_": "2026-11-01T14:00+02:00"}, "from"),
        ({"from_": "-1"}, "from"),
        ({"from_": "999999999999"}, "from"),
        ({"from_": "2026-11-02", "to": "2026-11-02"}, "from"),
        ({"to": "٣"}, "to"),
        ({"bucket": "2h"}, "bucket"),
        ({"from_": "2016-01-01", "to": "2026-01-01", "bucket": "1h"}, "bucket"),
        ({"group_by": "team"}, "group_by"),
        ({"group_by": "label:"}, "group_by"),
        ({"group_by": "label:" + "x" * 513}, "group_by"),
        ({"group_by": "label:a\x00"}, "group_by"),
        ({"format": "xml"}, "format"),
        ({"limit": "0"}, "limit"),
        ({"limit": "10001"}, "limit"),
        ({"limit": "1e3"}, "limit"),
        ({"cursor": "x" * 2049}, "cursor"),
        ({"groupby": "key"}, "groupby"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(parameters: dict[str, str], named: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(**parameters)
    assert refused.value.param == named


def test_ten_years_by_the_day_are_possible() -> None:
    assert read(from_="2016-01-01", to="2026-01-01", bucket="1d").asked.bucket == "1d"


def test_a_tenant_sees_its_own_and_an_operator_all() -> None:
    assert read(TENANT).asked.tenant == "acme"
    assert read(TENANT, tenant="acme").asked.tenant == "acme"
    assert read().asked.tenant is None
    assert read(tenant="acme").asked.tenant == "acme"
    with pytest.raises(ApiError) as refused:
        read(TENANT, tenant="other")
    assert refused.value.param == "tenant"


def test_labels_with_any_printable_name_are_groups() -> None:
    for name in ("team", "ü:#&=%", "<b>"):
        query = read(group_by=f"label:{name}")
        assert (query.asked.group, query.asked.label) == ("label", name)
        assert query.group_by == f"label:{name}"


def test_a_table_comes_for_who_asks_for_one() -> None:
    assert read(format="csv").format == "csv"
    assert read(accept="text/csv, */*").format == "csv"
    assert read(accept="text/csv", format="json").format == "json"
