"""A tool is listed in each of the ways that templates have."""

import json

from tools_api.tool_listing import LISTINGS
from tools_api.tools import FunctionTool

SEARCH = FunctionTool(
    name="search_files",
    parameters={
        "type": "object",
        "required": ["how"],
        "properties": {"how": {"minimum": 1, "type": "integer", "enum": [1, 2]}},
    },
)


def test_each_way_names_the_tool_and_those_of_json_are_json() -> None:
    listed = {name: listing(SEARCH) for name, listing in LISTINGS.items()}
    assert len(set(listed.values())) == len(LISTINGS)
    for name, text in listed.items():
        assert "search_files" in text
        if "json" in name:
            inner = json.loads(text)
            function = inner if name.startswith("function") else inner["function"]
            assert function["parameters"] == SEARCH.parameters
        else:
            assert "<name>search_files</name>" in text
