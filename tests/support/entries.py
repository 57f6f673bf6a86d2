"""Transcript entries and stored responses that a test says only the essentials of."""

import numpy as np

from sessions.durable.ledger import Ledger, PriceTable
from sessions.durable.response_table import StoredResponse
from sessions.durable.session import Session
from sessions.durable.transcript import ROOT_DIGEST, Entry, Header, Tail, roll_all
from tools_api.chat_format import TemplateOptions
from tools_api.item_reading import parse_items
from tools_api.items import Item

SESSION = Session(name="s", tenant="t", ledger=Ledger(PriceTable()), now=0.0)


def entry(
    parent: Entry | None = None, answer: str = "a", size: int = 10, item_id: str | None = None
) -> Entry:
    said: tuple[Item, ...] = parse_items([{"role": "assistant", "content": answer, "id": item_id}])
    ids = np.zeros(size, dtype=np.int32)
    header = Header(
        instructions=None,
        opening=None,
        tools=(),
        options=TemplateOptions(),
        ids=np.zeros(2, dtype=np.int32),
    )
    return Entry(
        parent=parent,
        header=parent.header if parent is not None else header,
        opening=None,
        input_items=(),
        input_ids=ids,
        output_items=said,
        output_ids=ids,
        tail=Tail.CLOSED_OUTPUT,
        num_tokens=0,
        open_calls=frozenset(),
        digest=roll_all(parent.digest if parent is not None else ROOT_DIGEST, said),
    )


def response(id_: str, of: Entry, connection_id: str = "c", packed: bytes = b"") -> StoredResponse:
    return StoredResponse(
        id=id_, entry=of, session=SESSION, connection_id=connection_id, private=False, packed=packed
    )
