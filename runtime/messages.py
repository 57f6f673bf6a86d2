"""Messages that cross the border between the sessions and the engine.

Everything here is frozen and free of torch. Token ids travel as int32 numpy arrays and
only as deltas: a request names its base (a branch the engine already holds and an
offset in it) and carries what is new. ``runtime.process.frames`` turns these objects into
bytes.
"""

import enum
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from tools_api.grammar import GrammarSpec

TokenArray = npt.NDArray[np.int32]


class FinishReason(enum.Enum):
    """Why a sequence ended. Exactly one is reported for each request."""

    STOP = "stop"
    """The model ended its turn (an end-of-turn token was emitted)."""

    STOP_STRING = "stop_string"
    """One of the request's stop strings appeared in the text."""

    LENGTH = "length"
    """``max_new_tokens`` were emitted."""

    CONTEXT = "context"
    """The model's context filled up before the end."""

    PREFILLED = "prefilled"
    """A warm-up (``max_new_tokens`` 0) has its prompt in the cache."""

    CANCELLED = "cancelled"
    """A CancelRequest arrived."""

    ERROR = "error"
    """This request failed; ``SequenceOutput.error`` says why. The engine lives."""

    UNKNOWN_BASE = "unknown_base"
    """The engine does not hold the named base (it restarted, or dropped the branch).
    Nothing ran; the caller sends the same request again with the whole transcript."""


class ErrorKind(enum.Enum):
    """Sort of failure behind FinishReason.ERROR."""

    INTERNAL = "internal"
    GRAMMAR = "grammar_error"
    TOO_LARGE = "too_large"
    """The sequence cannot fit the KV pool even alone."""
    NOT_FINITE = "not_finite"
    """The model produced NaN or infinite logits."""
    OVERLOADED = "overloaded"
    """Refused before anything ran: the queue is full."""
    BUDGET_TOO_SMALL = "budget_too_small"
    """The token limit does not hold the shortest legal constrained output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn. ``temperature`` 0 means greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 turns the filter off."""
    min_p: float = 0.0
    seed: int = 0
    """Randomness at a position is a function of (seed, position) alone."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Penalties count tokens this request has emitted, not the prompt."""
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    """How many log-probabilities are told with each token, beside the chosen one's; None: none."""

    @property
    def penalises(self) -> bool:
        """Whether what was emitted changes how likely tokens are: some penalty is not neutral."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request to the model: a transcript and how to continue it."""

    request_id: str
    branch_id: str
    """The branch this request writes to: an append-only run of tokens that the engine holds."""
    tenant: str
    """Cache root. From authentication, never from the client's message."""
    base_branch_id: str | None
    """Branch whose first ``base_offset`` tokens start this transcript. Equal to
    ``branch_id`` to continue it, another one to fork it, None for a whole transcript."""
    base_offset: int
    new_tokens: TokenArray
    """int32 [n]; the prompt is base[:base_offset] + new_tokens."""
    max_new_tokens: int
    """Hard limit on emitted tokens, end-of-turn token included. 0 = prefill only."""
    sampling: SamplingParams
    adapter: str | None = None
    """Name of the adapter that it is computed with; None: none. What a branch has in the cache
    is found again under the same one only; its tokens may be gone on from under any."""
    grammar: GrammarSpec | None = None
    banned_tokens: tuple[int, ...] = ()
    """Ids never drawn while no grammar binds: control tokens that mean nothing in an
    output, and the call tag where calls are not allowed."""
    expects_tool_call: bool = False
    """tool_choice forces a call: the scheduler may count on a short output."""
    priority: int = 0
    """Larger runs earlier; 0 is the default class."""
    deadline_s: float | None = None
    """Seconds from arrival within which the client wants its first token; None = none."""
    expected_tool_s: float | None = None
    """Client's hint: how long its tools take after this request. Sizes the lease."""
    resume_points: tuple[int, ...] = ()
    """Tokens of the prompt behind which others are expected to go on, ascending: the end of
    instructions and tools, of what is published, where sub-agents part. A model with recurrent
    layers keeps a state there, one with windows the window before it; others need none. At most
    ``Limits.max_resume_points``, each inside the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseBranch:
    """The branch will not be continued: forget its tokens and handle. Its KV stays in the
    tree as evictable."""

    branch_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropBranch:
    """The branch's KV is to leave the device, whatever lease it has, unless a request of it runs.
    Its tokens stay known."""

    branch_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRequest:
    """Show the upper part of the cache's tree, in the output of a step soon."""

    tenant: str | None
    """The tenant who is to see it; None: the operator."""
    max_nodes: int


EngineMessage = GenerationRequest | CancelRequest | ReleaseBranch | DropBranch | PictureRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where a sequence of a model with recurrent layers began."""

    position: int
    """Tokens of the prompt before it; 0: no state of them was kept."""
    kind: str = ""
    """Of ``SNAPSHOT_KINDS``: why the state was kept; empty at 0."""
    tier: str = ""
    """``device`` or ``host``: where it was; empty at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStart:
    """Sent once, when the engine has admitted a sequence and matched its prefix."""

    input_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV was found, 0 .. input_tokens - 1."""
    queue_s: float
    """Seconds between arrival in the engine and admission."""
    miss_causes: dict[str, int] = field(default_factory=dict)
    """Uncached prompt tokens by cause; the values add up to input - cached."""
    evicted_ago_s: float | None = None
    """Seconds since the first of the evicted tokens among them went; None: none was evicted."""
    ending_known: bool = True
    """The grammar, if there is one, has a known legal ending within the limit."""
    resumed: ResumePoint | None = None
    """The state that it was resumed from; None for a model without recurrent layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOutput:
    """The output of one step for one request."""

    request_id: str
    new_tokens: TokenArray
    """int32 [k], k >= 0, in order; the end-of-turn token included."""
    forced: int = 0
    """How many of ``new_tokens`` the grammar forced (no logits were needed)."""
    drafted: int = 0
    """Draft tokens verified in this step, forced ones not counted."""
    accepted: int = 0
    """How many of those were accepted."""
    forwards: int = 0
    """1 if this sequence's tokens came with a forward pass, 0 if they were decided later."""
    start: SequenceStart | None = None
    queue_position: int | None = None
    """Set while the request waits and its position has changed (0 = next)."""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    error: ErrorKind | None = None
    error_message: str = ""


SNAPSHOT_KINDS: Final = ("end", "header", "junction", "pause", "interval")
"""Why states are kept, as ``radix_cache.snapshots`` names it."""

ENGINE_PARTS: Final = (
    "kv",
    "states",
    "host_kv",
    "prefix_tree",
    "session_tokens",
    "drafts",
    "grammars",
    "heap_free",
)
"""Parts of the engine whose memory grows with its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """The engine's state after a step, for metrics. Counts are absolute unless *_delta."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_evictable: int = 0
    blocks_protected: int = 0
    blocks_reserved: int = 0
    step_s: float = 0.0
    steps_s: list[float] = field(default_factory=list)
    """Seconds of every step since the last report, also of those that told nothing."""
    steps_prefill_tokens: list[int] = field(default_factory=list)
    """Prompt tokens that each of them computed."""
    steps_cost_ratio: list[float] = field(default_factory=list)
    """The time that each of them took, over what had been predicted."""
    token_gap_bound_s: float = 0.0
    """The longest gap between tokens that plans with prefill beside decodes aim at."""
    prefill_tokens_delta: int = 0
    decode_tokens_delta: int = 0
    preemptions_delta: int = 0
    evicted_blocks_delta: int = 0
    """Blocks whose KV was evicted from all tiers."""
    mask_s_delta: float = 0.0
    rank_wait_s_delta: float = 0.0
    """Seconds of steps in which sums with other ranks were made and waited for."""
    ahead_held_delta: int = 0
    """Steps begun before the last one's tokens were known that held as they were begun."""
    ahead_second_passes_delta: int = 0
    """Steps computed ahead of which a part had to be computed in a second pass."""
    ahead_dropped_delta: int = 0
    graph_replayed_delta: int = 0
    """Forward passes without a chunk of a prompt, since the last report, that ran as they had been
    recorded; 0 on a CPU."""
    graph_eager_delta: int = 0
    """That no recording was for."""
    graph_replayed_chunks_delta: int = 0
    """Replayed forward passes with a chunk."""
    graph_eager_chunks_delta: int = 0
    graph_failed_delta: int = 0
    """Recordings that failed, when they were made or replayed."""
    """Such steps of which nothing was used."""
    branches: int = 0
    host_blocks_total: int = 0
    host_blocks_used: int = 0
    disk_blocks_total: int = 0
    disk_blocks_used: int = 0
    device_hit_tokens_delta: int = 0
    """Prompt tokens of admitted sequences that were found on the device."""
    host_hit_tokens_delta: int = 0
    """Prompt tokens of admitted sequences that came back from host memory."""
    damaged_blocks_delta: int = 0
    """Blocks that the disk did not hold as they were written."""
    state_slots_total: int = 0
    """Slots for states of recurrent layers; running sequences have what is neither free nor a
    snapshot."""
    state_slots_free: int = 0
    state_snapshots: int = 0
    snapshots_taken_delta: dict[str, float] = field(default_factory=dict)
    """Snapshots that were taken, by kind, and how many of these were lost."""
    snapshots_lost_delta: dict[str, float] = field(default_factory=dict)
    host_states_total: int = 0
    """Slots for states in host memory and on disk."""
    host_states_used: int = 0
    disk_states_total: int = 0
    disk_states_used: int = 0
    snapshots_raised_delta: int = 0
    """Sequences that began with a state from host memory."""
    slot_waits_delta: int = 0
    """Times a sequence could not be admitted for want of a slot, and for want of blocks."""
    block_waits_delta: int = 0
    window_blocks_total: int = 0
    """Blocks that rows of layers with a window have room for, where these are given back behind it;
    0: every block has them."""
    window_blocks_held: int = 0
    """Those that running sequences read or that a transcript is thought to go on from."""
    window_blocks_evicted_delta: int = 0
    memory_bytes: dict[str, float] = field(default_factory=dict)
    """Memory by one of ``ENGINE_PARTS``; empty where it was told less than a second before."""
    transfer_bytes_delta: dict[str, float] = field(default_factory=dict)
    """KV copied, by ``device_host``, ``host_device``, ``host_disk`` and ``disk_host``."""
    transfer_s_delta: dict[str, float] = field(default_factory=dict)
    """Seconds in which copies ran, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureNode:
    """A node of the cache's tree; its fields are those of ``radix_cache.picture.PicturedNode``."""

    parent: int | None
    owner: str
    start: int
    tokens: int
    tier: int
    klass: int
    age: int
    children: int
    holders: int
    branches: tuple[str, ...]
    lease_s: float
    head: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePicture:
    """The upper part of the cache's tree, parents before their children."""

    tenant: str | None
    """The tenant that the request named."""
    nodes: tuple[PictureNode, ...]
    num_nodes: int
    """Nodes of the whole tree, all tenants' together; 0 where the picture is for one of them."""
    tenant_blocks: dict[str, int] = field(default_factory=dict)
    """Device blocks that each tenant has; empty where the picture is for one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """How much of the device a branch has had since it was told of last; see
    ``radix_cache.residency``."""

    branch_id: str
    block_us: int
    """Residency in block-microseconds."""
    gone: bool = False
    """The branch is forgotten, which every ``ReleaseBranch`` is answered with: nothing more is
    told of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """All that one engine step tells the front end."""

    outputs: tuple[SequenceOutput, ...]
    stats: StepStats
    pictures: tuple[CachePicture, ...] = ()
    """Pictures of the cache, as they were asked for."""
    residency: tuple[Residency, ...] = ()
    """Residency of branches whose request ended, that were forgotten, or that it is time to tell
    of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The engine's process is alive; sent beside the steps, also in the middle of one."""

    turn: int
    """Grows with everything that its loop begins."""
    working: bool
    """False while it waits for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The engine's process is not ready yet and gets on; sent until it is."""

    stage: str
    """The engine's present work, in words that follow "while"."""
    memory_bytes: int
    """Most memory it has held; grows as weights are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """An adapter that the engine has in memory."""

    name: str
    digest: str
    """16 hexadecimal digits of its contents: weights and scale."""
    rank: int
    """The largest of its matrices' ranks."""
    num_bytes: int
    """Memory of its matrices, on each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """The engine's first message, when it is ready."""

    model_name: str
    device: str
    dtype: str
    vocab_size: int
    max_context_tokens: int
    block_size: int
    kv_capacity_tokens: int
    num_parameters: int
    load_s: float
    tokenizer_folder: str = ""
    """Where the front end finds the tokenizer; a folder on this machine."""
    model_type: str = ""
    """Family, as in config.json: the front end chooses the chat format by it."""
    ranks: int = 1
    """Processes that compute the model together."""
    adapters: tuple[AdapterInfo, ...] = ()
