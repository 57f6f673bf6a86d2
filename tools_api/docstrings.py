"""What a class says of its fields, in the string under each."""

import ast
import inspect
import textwrap


def field_docstrings(type_: type) -> dict[str, str]:
    """The string under each field of a class's own, on one line."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(type_))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
        ):
            texts[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return texts
