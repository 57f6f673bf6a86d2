"""No module asks for a home folder in a way that raises where the user has none."""

import ast

from tests.support.architecture import PACKAGES, source_files


def test_homes_are_looked_up_in_ways_that_do_not_raise() -> None:
    """``Path.home`` and ``Path.expanduser`` raise for a user whom the system does not know, as in a
    container; ``os.path.expanduser`` and ``home_folder`` do not."""
    found = [
        (str(path), node.lineno)
        for package in PACKAGES
        for path in source_files(package)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in {"home", "expanduser"}
        and ast.unparse(node) != "os.path.expanduser"
    ]
    assert found == []
