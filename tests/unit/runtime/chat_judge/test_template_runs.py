"""A template that takes too much costs what it may, and is refused in a line."""

import os
import time

import psutil
import pytest

from runtime.chat_judge import template_runs
from runtime.chat_judge.template_runs import TemplateLimits, TemplateRefused, run_template
from tests.support.judged_templates import HOSTILE

SHORT = TemplateLimits(cpu_s=0.5, memory_bytes=64 << 20, most_characters=100_000)


@pytest.mark.samples(4)
@pytest.mark.parametrize("what", HOSTILE)
def test_whatever_a_template_does_there_is_an_answer_or_one_line(what: str) -> None:
    began, before = time.process_time(), psutil.Process().children()
    try:
        (made,) = run_template(HOSTILE[what], [{"messages": []}], SHORT)
    except TemplateRefused as refused:
        line = str(refused)
        assert line == "takes more than 0.5 s"
        assert what == "it loops for ever"
    else:
        assert made.text == ("" if what == "it writes nothing" else None)
        assert len(made.error.splitlines()) <= 1
    assert time.process_time() - began < 1.0
    assert set(psutil.Process().children()) <= set(before)


def test_the_process_sees_nothing_of_this_environment_and_can_open_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(os.environ, "KEEPWARM_API_KEY", "a-secret")
    monkeypatch.setitem(os.environ, "HTTP_PROXY", "http://somewhere")
    passed = template_runs.child_variables()
    assert set(passed) <= {"PATH", "SYSTEMROOT", "LD_LIBRARY_PATH"} | {
        *("PYTHONPATH", "PYTHONIOENCODING", "PYTHONHASHSEED")
    }


def test_a_process_that_is_slow_or_answers_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(TemplateRefused, match=r"is not done within 0\.01 s"):
        run_template("x", [{}], TemplateLimits(wall_s=0.01))
    for told in (b"", b"{}", b"[]", b"[1]", b'[{"text": 1}]', b"\xff", b'[{"text": "a"}, {}]'):
        with pytest.raises(TemplateRefused, match="no answer that can be read"):
            template_runs.read_renderings(told, 1)
    monkeypatch.setattr(template_runs.sys, "executable", "/bin/false")
    with pytest.raises(TemplateRefused, match="is jinja2 installed"):
        run_template("x", [{}])
