"""What a step tells: one answer a request, told once."""

from runtime.engine.step_outputs import OutputCollector
from runtime.messages import ErrorKind, FinishReason, TokenLogprob


def test_what_one_step_adds_to_a_request_is_one_answer() -> None:
    outputs = OutputCollector()
    outputs.of("a").tokens += [1, 2]
    outputs.of("a").logprobs.append(TokenLogprob(token=2, logprob=-1.0))
    outputs.of("b").queue_position = 3
    outputs.of("a").forced += 1
    first, second = outputs.collect()
    assert (first.request_id, first.new_tokens.tolist(), first.forced) == ("a", [1, 2], 1)
    assert first.logprobs[0].token == 2
    assert (second.request_id, second.queue_position, second.finish) == ("b", 3, None)


def test_an_answer_is_told_once() -> None:
    outputs = OutputCollector()
    outputs.of("a").tokens.append(1)
    assert len(outputs) == 1
    outputs.collect()
    assert len(outputs) == 0
    assert outputs.collect() == ()


def test_an_error_is_a_finish() -> None:
    outputs = OutputCollector()
    outputs.error("a", ErrorKind.OVERLOADED, "try again later")
    (answer,) = outputs.collect()
    assert (answer.finish, answer.error) == (FinishReason.ERROR, ErrorKind.OVERLOADED)
    assert answer.error_message == "try again later"
