"""A Python file's tools, or one line that says what is wrong with the file."""

from pathlib import Path

import pytest

from keepwarm.commands.tools_file import tools_of
from sessions.command.settings import OptionError

HEAD = "from keepwarm import tool\n"
ONE = "@tool\ndef one(x: int) -> int:\n    'One.'\n    return x\n"


def write(folder: Path, text: str, name: str = "my_tools.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_decorated_functions_are_the_tools_in_their_order(tmp_path: Path) -> None:
    text = HEAD + ONE + ONE.replace("one", "two") + "again = one\ndef plain(x: int): ...\n"
    assert [tool.name for tool in tools_of(write(tmp_path, text))] == ["one", "two"]


def test_a_list_named_tools_goes_before(tmp_path: Path) -> None:
    text = HEAD + ONE + ONE.replace("one", "two") + "tools = [two]\n"
    assert [tool.name for tool in tools_of(write(tmp_path, text))] == ["two"]


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "NUMBER = 7\n", "beside_the_tools.py")
    text = HEAD + "from beside_the_tools import NUMBER\n" + ONE.replace("return x", "return NUMBER")
    (tool,) = tools_of(write(tmp_path, text))
    assert tool(1) == 7


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no tool in it; put @tool"),
        ("tools = []", "no tool in it"),
        (
            HEAD + ONE + "def two(x: int): ...\ntools = [one, two]\n",
            "has two, which is no tool; put",
        ),
        (HEAD + "raise SystemExit(3)\n", ", line 2: SystemExit: 3"),
        (HEAD + ONE + "def f(:\n", ", line 6: SyntaxError"),
        (HEAD + "\n1 / 0\n", ", line 3: ZeroDivisionError: division by zero"),
        ("import no_such_module_here\n", ", line 1: ModuleNotFoundError: No module named"),
        (HEAD + "@tool\ndef one(x): ...\n", ": TypeError"),
        (HEAD + ONE + "first = one\n" + ONE, "two tools are called 'one'"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(OptionError) as caught:
        tools_of(path)
    message = str(caught.value)
    assert message.startswith(f"--tools {path}")
    assert complaint in message
    assert "\n" not in message


def test_it_has_to_be_there_and_be_python(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file"):
        tools_of(tmp_path / "absent.py")
    with pytest.raises(OptionError, match=f"--tools {tmp_path}: a folder"):
        tools_of(tmp_path)
    with pytest.raises(OptionError, match=r"--tools x+"):
        tools_of(Path("x" * 300))  # which the system does not look for
    with pytest.raises(OptionError, match="a Python file is needed"):
        tools_of(write(tmp_path, HEAD + ONE, "tools.txt"))
