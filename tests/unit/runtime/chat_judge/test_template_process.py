"""Inside its process a template has what chat templates are written for, and no more."""

import pytest

from runtime.chat_judge.template_process import LONGEST_ERROR, answers


def made(template: str, **variables: object) -> dict[str, str]:
    (answer,) = answers(template, [variables], 10_000)
    return answer


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ {'a': 'é<b>', 'b': [1, None]} | tojson }}", '{"a": "é<b>", "b": [1, null]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("  {% if true %}\nline\n  {% endif %}\nend", "line\nend"),
        ("{{ x }}|{{ nothing }}", "1|"),
    ],
)
def test_it_has_what_transformers_gives_templates(template: str, text: str) -> None:
    assert made(template, x=1) == {"text": text}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('not\n today') }}", "not today"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError: access to attribute '__class__'"),
        ("{{ x.append(1) }}", "SecurityError"),
        ("{% include 'other' %}", "no loader"),
        ("{% if %}", "line 1"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "it calls itself without end"),
        ("{{ lipsum() }}", "UndefinedError"),
        ("{{ 'x' * 10001 }}", "it writes more than it may"),
        ("{{ raise_exception('x' * 100000) }}", "x" * LONGEST_ERROR),
    ],
)
def test_what_it_raises_is_a_short_line(template: str, said: str) -> None:
    error = made(template, x=[])["error"]
    assert said in error
    assert len(error.splitlines()) == 1
    assert len(error) < LONGEST_ERROR + 30


def test_one_conversation_that_fails_leaves_the_others_and_what_is_written_adds_up() -> None:
    template = "{% if bad %}{{ raise_exception('bad') }}{% endif %}{{ 'x' * n }}"
    given = [{"n": 6}, {"bad": True}, {"n": 5}, {"n": 4}]
    assert [sorted(each) for each in answers(template, given, 10)] == [
        *(["text"], ["error"], ["error"], ["text"])
    ]
