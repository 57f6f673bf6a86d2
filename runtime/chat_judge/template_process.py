"""The process that runs a model folder's chat template, which is code of strangers.

Started by ``runtime.chat_judge.template_runs`` for one template, and ended by the system where it
takes more time or memory than it may. Reads one question from its standard input and answers on
its standard output. Once it has read the question it opens no file and no socket any more.

Imports nothing of ours, and no torch.

Always true: what a template writes leaves as text of JSON, no more than was allowed; whatever it
raises becomes one short line.
"""

import contextlib
import datetime
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
import jinja2.debug  # an error inside a template needs it, when no file can be opened any more
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

LONGEST_ERROR = 300
DATE = datetime.datetime(2024, 7, 26)
"""Today, for every template: a real date would change every prefix at midnight."""


class _TooLong(Exception):
    pass


class _Generation(jinja2.ext.Extension):
    """``{% generation %}``, which marks what a model wrote; it writes nothing itself."""

    tags = {"generation"}  # noqa: RUF012 (the library's own form)

    def parse(self, parser: Any) -> Any:
        """The block's content, as a call, which is a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_as_it_is")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _as_it_is(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """A value as JSON as transformers writes it: without the escapes that Jinja's own makes for
    HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The environment that chat templates are written for."""
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = DATE.strftime
    del made.globals["lipsum"]  # another text each time
    return made


def answers(
    template: str, conversations: list[dict[str, Any]], most_characters: int
) -> Iterator[dict[str, str]]:
    """The text of each conversation, or why there is none."""
    try:
        compiled = environment().from_string(template)
    except Exception as error:  # whatever a compiler can raise
        yield from ({"error": _line(error)} for _ in conversations)
        return
    left = most_characters
    for variables in conversations:
        try:
            text = _text(compiled, variables, left)
        except Exception as error:  # whatever a template can raise
            yield {"error": _line(error)}
            continue
        left -= len(text)
        yield {"text": text}


def _text(compiled: jinja2.Template, variables: dict[str, Any], most: int) -> str:
    pieces, length = [], 0
    for piece in compiled.generate(**variables):
        length += len(piece)
        if length > most:
            raise _TooLong("it writes more than it may")
        pieces.append(piece)
    return "".join(pieces)


def _line(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it needs more memory than it may have"
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    where = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
    said = " ".join(str(error).split()) if not isinstance(error, _TooLong) else str(error)
    name = "" if type(error) in (_TooLong, jinja2.TemplateError) else f"{type(error).__name__}: "
    return f"{name}{said}"[:LONGEST_ERROR] + where


def bound(cpu_s: float, memory_bytes: int) -> None:
    """Give this process no more than that from now on; the system ends it where it wants more."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    with contextlib.suppress(OSError, ValueError):
        limit = _mapped_bytes() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def _load_what_is_loaded_late() -> None:
    """Load the files that a template's first use would read."""
    trial = "{% for x in [1] %}{{ 'a\\n' | upper }}{{ {'k': [x]} | tojson }}{% endfor %}"
    environment().from_string(trial).render()
    DATE.strftime("%d %b %Y")
    with contextlib.suppress(jinja2.TemplateError):
        environment().from_string("{{ raise_exception('') }}").render()


def _mapped_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main() -> int:
    """Entry point: the question is JSON on standard input, up to its end."""
    question = json.loads(sys.stdin.buffer.read())
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdin.close()
    _load_what_is_loaded_late()
    bound(question["cpu_s"], question["memory_bytes"])
    found = list(
        answers(question["template"], question["conversations"], question["most_characters"])
    )
    answer.write(json.dumps(found).encode())
    answer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
