"""How much memory recordings of large chunks may take, and which of them fit into it.

Arithmetic before anything is recorded. All recordings work in one pool of memory, which is as large
as the largest step's intermediate values, and each keeps its logits there until it is replayed
again. Recordings of few tokens are not bounded: they are what decodes run in.
"""

from collections.abc import Sequence

from kernels.delta_rows import CHUNK
from runtime.model.config import Experts, Gated, KeepsKV, Layer, ModelConfig, Plain
from runtime.model.recurrent import GatedDelta, KimiDelta, Mamba2, OfMatrices, ShortConv
from runtime.model.state_step import StateRoom
from runtime.model.step_buckets import Bucket, large_chunks

RECORDED_BYTES = 1 << 30
"""The most that recordings of large chunks may take; steps that none is for run as they come."""
_LOGIT_BYTES = 4
_STATE_BYTES = 4


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


def room_of(bucket: Bucket) -> StateRoom:
    """What a recording of ``bucket`` has room for of the states of its sequences."""
    return StateRoom.of(
        sequences=bucket.sequences, tokens=bucket.tokens, chunked=bool(bucket.chunk)
    )


def recording_bytes(model: ModelConfig, buckets: Sequence[Bucket], *, itemsize: int) -> int:
    """Memory of recordings, about: the intermediate values of the largest, the logits of each."""
    values = max((_value_bytes(model, bucket, itemsize) for bucket in buckets), default=0)
    return values + sum(bucket.logits for bucket in buckets) * model.vocab_size * _LOGIT_BYTES


def _value_bytes(model: ModelConfig, bucket: Bucket, itemsize: int) -> int:
    """Intermediate values of the layer that has the most."""
    own = 0 if model.layer_inputs is None else model.num_layers * model.layer_inputs.size
    stream = bucket.tokens * (4 * model.hidden_size + 3 * own) * itemsize
    layers = set(model.layers)
    return stream + max(
        bucket.tokens * _width(layer) * itemsize + _matrix_bytes(layer, bucket) for layer in layers
    )


def _width(layer: Layer) -> int:
    """Numbers that a layer makes of a token in the model's dtype, beside those of the residual
    stream."""
    mixed, mixer = 0, layer.mixer
    if isinstance(mixer, KeepsKV):
        mixed = 2 * (mixer.query_size + mixer.kv_size)
    match mixer:
        case ShortConv(channels=channels):
            mixed = 5 * channels
        case GatedDelta(channels=channels, value_size=values):
            mixed = 2 * channels + 2 * values
        case KimiDelta(channels=channels, size=values):
            mixed = 2 * channels + 4 * values
        case Mamba2(channels=channels, size=values):
            mixed = 2 * channels + 2 * values
    return mixed + _feed_forward_width(layer.feed_forward)


def _matrix_bytes(layer: Layer, bucket: Bucket) -> int:
    """Memory in which a layer with matrices shapes its tokens, solves its chunks and hands matrices
    out, in the dtype of states (``kernels.triton_delta_steps``)."""
    spec = layer.mixer
    if not isinstance(spec, OfMatrices):
        return 0
    room = room_of(bucket)
    keys, values = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
    decays = spec.value_heads * (spec.key_dim if spec.by_channel else 1)
    shaped = room.tokens * (2 * keys + 4 * values + spec.value_heads + decays)
    turned = room.tokens * (spec.value_heads * spec.key_dim + values) if room.chunks else 0
    solved = 2 * room.chunks * spec.value_heads * CHUNK * CHUNK
    handed = room.long * spec.value_heads * spec.key_dim * spec.value_dim
    return (shaped + turned + solved + handed) * _STATE_BYTES


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
