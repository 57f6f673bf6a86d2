"""The names of ``keepwarm.testing``, and its own example."""

import textwrap

from keepwarm import testing, tool


@tool
def get_price(product: str) -> int:
    """Get a price."""
    return {"lamp": 24}[product]


def test_every_name_is_there_and_no_other() -> None:
    public = {name for name in vars(testing) if not name.startswith("_")}
    assert public == set(testing.__all__)
    assert list(testing.__all__) == sorted(testing.__all__)


def test_the_example_in_the_docstring_runs_as_it_stands() -> None:
    assert testing.__doc__ is not None
    lines = testing.__doc__.splitlines()
    code = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))
    assert "server.client()" in code
    exec(compile(code, "keepwarm.testing", "exec"), {"get_price": get_price})
