"""What ``anthropic`` publishes, as pinned, is what the record says that unit tests are held to."""

import json

from tests.clients.playing import made, run
from tests.clients.table import CLIENTS, version
from tests.support.architecture import ROOT


def test_the_record_of_the_published_types_is_that_of_the_pinned_package() -> None:
    client = next(client for client in CLIENTS if client.package == "anthropic")
    where = made(client)
    published = json.loads(run(where, where.scripts / "anthropic_types.py"))
    record = json.loads((ROOT / "tests/support/published_messages.json").read_text())
    assert record == {"version": version(client), **published}
