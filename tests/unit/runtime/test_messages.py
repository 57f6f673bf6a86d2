"""Engine messages: frozen, and plain by default."""

import dataclasses

import numpy as np
import pytest

from runtime import messages
from runtime.messages import (
    CancelRequest,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    SequenceOutput,
)

MESSAGES = [
    kind
    for kind in vars(messages).values()
    if dataclasses.is_dataclass(kind) and kind.__module__ == messages.__name__
]


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_what_crosses_the_border_is_frozen_and_slotted(kind: type) -> None:
    parameters = kind.__dataclass_params__  # type: ignore[attr-defined]
    assert parameters.frozen
    assert hasattr(kind, "__slots__")


def test_a_message_cannot_be_changed() -> None:
    message = CancelRequest(request_id="r")
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.request_id = "other"  # type: ignore[misc]


def test_a_request_without_options_is_an_unconstrained_turn_of_the_default_class() -> None:
    request = GenerationRequest(
        request_id="r",
        branch_id="s",
        tenant="t",
        base_branch_id=None,
        base_offset=0,
        new_tokens=np.zeros(1, dtype=np.int32),
        max_new_tokens=1,
        sampling=SamplingParams(),
    )
    assert (request.grammar, request.banned_tokens, request.priority) == (None, (), 0)
    assert (request.sampling.top_k, request.sampling.top_p, request.sampling.min_p) == (0, 1.0, 0.0)


def test_an_output_says_nothing_of_an_end_unless_there_is_one() -> None:
    output = SequenceOutput(request_id="r", new_tokens=np.zeros(0, dtype=np.int32))
    assert (output.finish, output.error, output.start) == (None, None, None)
    assert len({reason.value for reason in FinishReason}) == len(FinishReason)
