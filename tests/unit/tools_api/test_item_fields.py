"""Fields that items of all types have."""

from typing import Any

import pytest

from tools_api.errors import ApiError
from tools_api.item_fields import MAX_ID, call_id_of, head, item_head
from tools_api.json_fields import Fields


@pytest.mark.parametrize("id_", [None, "x_1"])
@pytest.mark.parametrize("status", [None, "completed"])
def test_what_all_items_have_is_read_as_it_was_written(id_: Any, status: Any) -> None:
    written = head("x", id_, status)
    assert item_head(Fields(written, "x")) == {"id": id_, "status": status}
    assert None not in written.values()


@pytest.mark.parametrize("id_", [None, "", "x" * (MAX_ID + 1), 1])
def test_a_call_id_is_a_bounded_text(id_: Any) -> None:
    with pytest.raises(ApiError) as refused:
        call_id_of(Fields({"call_id": id_}, "input[0]"))
    assert refused.value.param == "input[0].call_id"
    assert call_id_of(Fields({"call_id": "x" * MAX_ID}, "x")) == "x" * MAX_ID
