"""Queries of the list of sessions: what is asked for, and what is refused by its name."""

from urllib.parse import urlencode

import pytest
from websockets.datastructures import Headers

from sessions.durable.session import SessionState
from sessions.http.message import HttpRequest
from sessions.journal.listing import ListAsked
from sessions.pages.list_query import SessionsQuery, read_sessions_query
from sessions.tenants import Principal, Role
from tools_api.errors import ApiError

OPERATOR = Principal(tenant="ops", role=Role.OPERATOR)
TENANT = Principal(tenant="acme")


def read(who: Principal = OPERATOR, *pairs: tuple[str, str]) -> SessionsQuery:
    target = f"/sessions.json?{urlencode([('list', '1'), *pairs])}"
    return read_sessions_query(HttpRequest(method="GET", target=target, headers=Headers()), who)


def test_without_filters_it_is_all_that_one_may_see() -> None:
    assert read().asked == ListAsked()
    assert read(TENANT).asked == ListAsked(tenant="acme")


def test_every_filter_is_read() -> None:
    query = read(
        OPERATOR,
        ("q", "ÄRGER #&=%"),
        ("state", "waiting_for_tools"),
        ("tenant", "acme"),
        ("label", "team:a:b"),
        ("label", "env:x"),
        ("failed", "1"),
        ("budget", "1"),
        ("several", "1"),
        ("from", "5"),
        ("to", "9"),
        ("sort", "again"),
    )
    assert query.asked == ListAsked(
        tenant="acme",
        search="ärger #&=%",
        labels=(("env", "x"), ("team", "a:b")),
        failed=True,
        bounded=True,
        several=True,
        from_ms=5000,
        to_ms=9000,
        order="again",
    )
    assert query.state is SessionState.WAITING_FOR_TOOLS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sort", "name"),
        ("state", "closed"),
        ("label", "team"),
        ("label", ":x"),
        ("label", "a\x00:b"),
        ("failed", "yes"),
        ("budget", "2"),
        ("from", "yesterday"),
        ("to", "-1"),
        ("q", "x" * 257),
        ("q", "\x00"),
        ("cursor", "x" * 4097),
        ("page", "2"),
        ("tenant", "\x00"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(OPERATOR, (name, value))
    assert refused.value.param == name


def test_many_labels_and_another_tenant_are_refused() -> None:
    with pytest.raises(ApiError) as refused:
        read(OPERATOR, *[("label", f"{n}:x") for n in range(500)])
    assert refused.value.param == "label"
    with pytest.raises(ApiError) as refused:
        read(TENANT, ("tenant", "other"))
    assert refused.value.param == "tenant"


def test_a_cursor_holds_for_one_question() -> None:
    questions = [
        read(),
        read(TENANT),
        read(OPERATOR, ("q", "a")),
        read(OPERATOR, ("state", "idle")),
        read(OPERATOR, ("sort", "cost")),
        read(OPERATOR, ("label", "a:b")),
        read(OPERATOR, ("failed", "1")),
        read(OPERATOR, ("to", "1")),
    ]
    told = [repr(each.question) for each in questions]
    assert len(set(told)) == len(told)
