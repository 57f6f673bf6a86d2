"""What a step tells: one answer a request, told once."""

from runtime.answers import Answers
from runtime.messages import ErrorKind, FinishReason, TokenLogprob


def test_what_one_step_adds_to_a_request_is_one_answer() -> None:
    answers = Answers()
    answers.of("a").tokens += [1, 2]
    answers.of("a").logprobs.append(TokenLogprob(token=2, logprob=-1.0))
    answers.of("b").queue_position = 3
    answers.of("a").forced += 1
    first, second = answers.take()
    assert (first.request_id, first.new_tokens.tolist(), first.forced) == ("a", [1, 2], 1)
    assert first.logprobs[0].token == 2
    assert (second.request_id, second.queue_position, second.finish) == ("b", 3, None)


def test_an_answer_is_told_once() -> None:
    answers = Answers()
    answers.of("a").tokens.append(1)
    assert len(answers) == 1
    answers.take()
    assert len(answers) == 0
    assert answers.take() == ()


def test_an_error_is_a_finish() -> None:
    answers = Answers()
    answers.error("a", ErrorKind.OVERLOADED, "try again later")
    (answer,) = answers.take()
    assert (answer.finish, answer.error) == (FinishReason.ERROR, ErrorKind.OVERLOADED)
    assert answer.error_message == "try again later"
