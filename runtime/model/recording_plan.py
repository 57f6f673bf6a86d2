"""How much memory recordings of large chunks may take, and which of them fit into it.

Arithmetic before anything is recorded. All recordings work in one pool of memory, which is as large
as the largest step's intermediate values, and each keeps its logits there until it is replayed
again. Recordings of few tokens are not bounded: they are what decodes run in.
"""

from collections.abc import Sequence

from runtime.model.config import Attention, Experts, Gated, Layer, ModelConfig, Plain
from runtime.model.step_buckets import Bucket, large_chunks

RECORDED_BYTES = 1 << 30
"""The most that recordings of large chunks may take; steps that none is for run as they come."""
_LOGIT_BYTES = 4


def recorded_chunks(
    model: ModelConfig,
    *,
    itemsize: int,
    max_sequences: int,
    max_tokens: int,
    most: int = RECORDED_BYTES,
) -> list[Bucket]:
    """The large chunks that are recorded: of all, in the order of cost, those that fit.

    Args:
        itemsize: bytes of a number that the model computes with.
        max_tokens: of a step.
        most: bytes that they may take together.
    """
    fitting: list[Bucket] = []
    for bucket in large_chunks(max_sequences, max_tokens):
        if recording_bytes(model, [*fitting, bucket], itemsize=itemsize) > most:
            break
        fitting.append(bucket)
    return fitting


def recording_bytes(model: ModelConfig, buckets: Sequence[Bucket], *, itemsize: int) -> int:
    """Memory of recordings, about: the intermediate values of the largest, the logits of each."""
    widest = max(_width(layer) for layer in model.layers) + 4 * model.hidden_size
    values = max((bucket.tokens for bucket in buckets), default=0) * widest * itemsize
    return values + sum(bucket.logits for bucket in buckets) * model.vocab_size * _LOGIT_BYTES


def _width(layer: Layer) -> int:
    """Numbers that a layer makes of a token beside those of the residual stream."""
    mixer, feed_forward = layer.mixer, layer.feed_forward
    attention = 2 * (mixer.query_size + mixer.kv_size) if isinstance(mixer, Attention) else 0
    return attention + _feed_forward_width(feed_forward)


def _feed_forward_width(feed_forward: Gated | Plain | Experts | None) -> int:
    match feed_forward:
        case None:
            return 0
        case Gated():
            return 3 * feed_forward.size
        case Plain():
            return 2 * feed_forward.size
        case Experts():
            experts = feed_forward.router.per_token * _feed_forward_width(feed_forward.each)
            return experts + _feed_forward_width(feed_forward.shared)
