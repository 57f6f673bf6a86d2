"""What people say first: of it some is never practised, and all of it has one answer."""

from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.small_talk import ANSWER, OPENERS, is_held_out, openers
from examples.train_agent_model.world import Question


def small_talk(generator: SessionGenerator, sessions: int) -> list[Question]:
    return [
        question
        for _ in range(sessions)
        for question in generator.session().questions
        if question.kind == "small_talk"
    ]


def test_what_is_held_out_is_never_practised_however_it_is_spelt() -> None:
    assert not set(openers(held_out=True)) & set(openers(held_out=False))
    assert set(openers(held_out=True)) | set(openers(held_out=False)) == set(OPENERS)
    assert len(openers(held_out=True)) >= 45
    for opener in OPENERS:
        assert is_held_out(opener) == is_held_out(opener.upper() + "!") == is_held_out(f" {opener}")


def test_practice_talks_and_evaluation_does_not_unless_it_is_asked_to() -> None:
    practised = small_talk(SessionGenerator(1, held_out=False, hard=True), 200)
    assert len(practised) > 20
    assert {question.answer for question in practised} == {ANSWER}
    assert not any(question.steps for question in practised)
    assert not any(is_held_out(question.text) for question in practised)
    assert not small_talk(SessionGenerator(1, held_out=True), 200)


def test_some_sessions_of_practice_have_no_tools() -> None:
    generator = SessionGenerator(1, held_out=False, hard=True)
    sessions = [generator.session() for _ in range(300)]
    bare = [session for session in sessions if not session.tools]
    assert 8 < len(bare) < 60
    assert {question.kind for session in bare for question in session.questions} == {
        "small_talk",
        "no_tool",
    }


def test_results_are_bare_values_as_often_as_they_are_wanted() -> None:
    def share(plain_share: float) -> float:
        generator = SessionGenerator(1, held_out=False, plain_share=plain_share)
        results = [
            result
            for session in (generator.session() for _ in range(100))
            for question in session.questions
            if question.kind == "lookup"
            for step in question.steps
            for result in step.results
        ]
        return sum(not result.startswith("{") for result in results) / len(results)

    assert share(0.0) == 0.0
    assert 0.1 < share(0.2) < 0.45
    assert share(1.0) == 1.0


def test_a_quarter_of_the_hard_sessions_never_answers_in_json() -> None:
    """As the tools of one program do; there even a chain's links and a sum's terms are bare."""
    generator = SessionGenerator(1, held_out=False, hard=True)
    shares = []
    for session in (generator.session(num_questions=8) for _ in range(300)):
        plain = [
            not result.startswith("{")
            for question in session.questions
            if not question.kind.startswith("error_")
            for step in question.steps
            for result in step.results
        ]
        if len(plain) >= 4:
            shares.append(sum(plain) / len(plain))
    assert 0.18 < sum(share == 1.0 for share in shares) / len(shares) < 0.35
    others = [share for share in shares if share < 1.0]
    assert 0.08 < sum(others) / len(others) < 0.22
