"""Links: where frames go once a client is gone."""

from sessions.wire.links import NOBODY, Link
from tests.support.fake_engine import EchoConnection
from tests.support.tenants import make_tenant


def test_what_is_delivered_to_nobody_is_dropped_and_links_are_told_apart_by_identity() -> None:
    tenant = make_tenant("acme")
    connection = EchoConnection("c", tenant)
    links = [Link("c", tenant, connection, NOBODY) for _ in range(2)]  # type: ignore[arg-type]
    for link in links:
        link.outlet.deliver([b"{}"], 1000)
    assert links[0] != links[1]
    assert len({*links}) == 2
