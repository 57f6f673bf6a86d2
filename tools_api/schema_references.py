"""References inside a schema's own document.

Knows JSON pointers. A reference to another document leads nowhere.
"""

from typing import Any

Schema = dict[str, Any]


def resolved(root: Any, schema: Any) -> Any:
    """A schema, or the one of the same document that it only refers to; None if that is not
    there."""
    for _ in range(32):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        schema = pointed_at(root, schema["$ref"])
    return None


def pointed_at(root: Any, reference: str) -> Any:
    """The schema that a reference inside the document leads to; None if it leads elsewhere."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    node = root
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node
