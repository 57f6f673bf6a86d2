"""The fields that items of all types have are read as they are written, within their bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools_api.errors import ApiError
from tools_api.item_fields import MAX_ID, call_id_of, head, item_head
from tools_api.json_fields import Fields


def fields(raw: object) -> Fields:
    return Fields(raw, "input[0]")


@given(
    st.none() | st.text(max_size=9),
    st.sampled_from([None, "in_progress", "completed", "incomplete"]),
)
def test_what_is_written_is_read(id_: str | None, status: str | None) -> None:
    written = head("message", id_, status)  # type: ignore[arg-type]
    assert next(iter(written)) == "type"
    assert None not in written.values()
    assert item_head(fields(written)) == {"id": id_, "status": status}


@pytest.mark.parametrize("raw", [{"id": "x" * (MAX_ID + 1)}, {"status": "done"}, {"id": 7}])
def test_what_is_out_of_bounds_is_refused_by_its_path(raw: dict[str, object]) -> None:
    with pytest.raises(ApiError, match=r"input\[0\]"):
        item_head(fields({"type": "message", **raw}))


@pytest.mark.parametrize("raw", [{}, {"call_id": ""}, {"call_id": "x" * (MAX_ID + 1)}])
def test_a_call_has_an_id_within_bounds(raw: dict[str, object]) -> None:
    with pytest.raises(ApiError, match="call_id"):
        call_id_of(fields(raw))
