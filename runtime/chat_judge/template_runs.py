"""A chat template's texts of conversations, from a process that may be ended at any time.

The template is a stranger's code: it runs in ``runtime.chat_judge.template_process`` alone, in
a sandbox, with bounds on time, memory and output, without this process's environment.

Always true: an answer, or a refusal in one line, within the bounds, whatever the template does.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MOST_ERRORS = 1 << 20
_PASSED = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
"""Variables without which an interpreter does not start everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLimits:
    """Bounds on the cost of running one template over all conversations."""

    cpu_s: float = 2.0
    memory_bytes: int = 256 << 20
    """Above what the interpreter has."""
    most_characters: int = 1 << 20
    """Characters of all texts together."""
    wall_s: float = 20.0
    """On a machine that has no time for it."""


class TemplateRefused(Exception):
    """The template could not be run over the conversations. The message is a part of a sentence
    about it: "takes more than 2 s"."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """The template's text of one conversation: a text, or an error."""

    text: str | None
    error: str = ""


def run_template(
    template: str,
    conversations: Sequence[Mapping[str, Any]],
    limits: TemplateLimits | None = None,
) -> list[Rendering]:
    """Run a template over conversations, each the variables of one rendering.

    Raises:
        TemplateRefused: it takes too much, or ended its process.
    """
    limits = limits or TemplateLimits()
    question = {
        "template": template,
        "conversations": conversations,
        "cpu_s": limits.cpu_s,
        "memory_bytes": limits.memory_bytes,
        "most_characters": limits.most_characters,
    }
    command = [sys.executable, "-m", "runtime.chat_judge.template_process"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_variables(),
        start_new_session=True,
    ) as process:
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        watch = threading.Timer(limits.wall_s, end)
        watch.start()
        try:
            told = _asked(process, json.dumps(question).encode(), limits)
        finally:
            process.kill()
            watch.cancel()
            watch.join()
    if late.is_set():
        raise TemplateRefused(f"is not done within {limits.wall_s:g} s")
    if process.returncode and told is None:
        raise TemplateRefused(_why(process.returncode, limits))
    return read_renderings(told or b"", len(conversations))


def _asked(
    process: subprocess.Popen[bytes], question: bytes, limits: TemplateLimits
) -> bytes | None:
    """The answer, or None where the process ended without one."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(question)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    # A character is six bytes of JSON at most; each conversation has its braces and its error.
    told = process.stdout.read(8 * limits.most_characters + _MOST_ERRORS)
    return told if process.wait() == 0 else None


def read_renderings(told: bytes, count: int) -> list[Rendering]:
    """The process's answer, which a template that left its sandbox may have written."""
    try:
        found = json.loads(told)
        renderings = [
            Rendering(text=each.get("text"), error=str(each.get("error", ""))) for each in found
        ]
        texts = [each.text for each in renderings if each.text is not None]
        if len(renderings) != count or not all(isinstance(text, str) for text in texts):
            raise ValueError("not one text for each conversation")
    except (ValueError, TypeError, AttributeError) as error:
        raise TemplateRefused("gave no answer that can be read") from error
    return renderings


def _why(status: int, limits: TemplateLimits) -> str:
    if -status == signal.SIGPROF:
        return f"takes more than {limits.cpu_s:g} s"
    if status < 0:
        name = signal.Signals(-status).name
        return f"ended its process by {name}; {limits.memory_bytes >> 20} MiB is all it may have"
    return "cannot be run: its process did not start; is jinja2 installed?"


def child_variables() -> dict[str, str]:
    """The environment of a process that runs templates: nothing of this one's but what it needs."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return passed | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "PYTHONHASHSEED": "0"}
