"""The command begins again with its heap in large pages: once, and only if it was typed."""

import subprocess
import sys

import pytest

from runtime.heap_pages import with_large_pages
from sessions.command.begin_again import begin_in_large_pages

WANTED = with_large_pages({"HOME": "/h"})
offered = pytest.mark.skipif(WANTED == {"HOME": "/h"}, reason="there are no large pages here")


class Begun(Exception):
    """Takes the place of a process that goes on as another program."""


def begin(program: str, words: list[str], environment: dict[str, str]) -> None:
    raise Begun(program, words, environment)


@offered
def test_the_same_program_with_the_same_words_is_begun() -> None:
    with pytest.raises(Begun) as begun:
        begin_in_large_pages({"HOME": "/h"}, begin)
    assert begun.value.args == (sys.executable, [sys.executable, *sys.orig_argv[1:]], WANTED)


def test_a_process_that_has_them_goes_on() -> None:
    begin_in_large_pages(WANTED | {"PYTHONMALLOC": "malloc"}, begin)


@offered
def test_a_process_that_cannot_be_begun_again_goes_on() -> None:
    def refuse(program: str, words: list[str], environment: dict[str, str]) -> None:
        raise PermissionError(program)

    begin_in_large_pages({"HOME": "/h"}, refuse)


@pytest.mark.tail
@offered
@pytest.mark.parametrize("typed", [True, False])
def test_only_a_server_that_was_typed_begins_again(typed: bool) -> None:
    program = (
        "import os, sys\n"
        "os.execve = lambda *given: print('begun again')\n"
        "from keepwarm.__main__ import main\n"
        "sys.exit(main({words}))\n"
    )
    words = "" if typed else "sys.argv[1:]"
    ran = subprocess.run(
        [sys.executable, "-c", program.format(words=words), "serve", "--help"],
        env={"HOME": "/h"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith("begun again") is typed
    assert "Usage: keepwarm serve" in ran.stdout
