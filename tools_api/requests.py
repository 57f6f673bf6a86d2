"""``response.create`` as one checked, frozen object.

Field by field the published request, plus the ``keepwarm`` object. What a field needs the
server's state for (ids, sessions, the model's name, matching calls with outputs) is checked
by the session; what reads a frame into it is ``tools_api.request_reading``.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from tools_api.item_references import ItemReference
from tools_api.items import Item
from tools_api.tools import (
    FunctionTool,
    ToolChoice,
)
from tools_api.wire import WireModel

COMPACT_ALONE = "keepwarm:compact"
"""Field of a request that was a body of ``POST /v1/responses/compact``."""
ITEMS_ALONE = "keepwarm:items"
"""Field of a request that was a body with items for a conversation: they stay as they were sent."""
INT64_MAX = 2**63 - 1
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
TRACEPARENT = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TextFormat(WireModel):
    """``text.format``: what the final text must look like."""

    type: Literal["text", "json_schema", "json_object"] = "text"
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool = False

    def to_wire(self) -> dict[str, Any]:
        """As responses echo it; formats without a schema are their type alone."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {
            "type": self.type,
            "name": self.name,
            "schema": self.json_schema,
            "description": self.description,
            "strict": self.strict,
        }


class TextConfig(WireModel):
    """``text`` beside its format: echoed, without effect."""

    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(WireModel):
    """``reasoning``: an ``effort`` from ``low`` on lets the model think, ``summary`` is echoed."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None

    @property
    def thinking(self) -> bool:
        """The client asked for reasoning; without an ``effort`` the model does not think."""
        return self.effort not in (None, "none", "minimal")


class CacheOptions(WireModel):
    """``prompt_cache_options``."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: Literal["30m", "12h"] = "30m"
    prewarm: bool = False
    comparison_response_id: str | None = None


Tokens = Annotated[int, Field(ge=1, le=INT64_MAX)]


class ContextManagement(WireModel):
    """One entry of ``context_management``: of Responses ``compaction``, of Messages what its
    dialect makes of an edit."""

    type: Literal["compaction", "clear_tool_uses"]
    compact_threshold: Tokens | None = None
    """Tokens of context from which on it is to be compacted, or cleared; None: as many as are
    four fifths of the model's context."""
    trigger_uses: Tokens | None = None
    """Calls from which on their outputs are to be cleared, instead of tokens."""
    keep_uses: Count = 3
    """The outputs of so many newest calls stay."""
    clear_at_least: Count = 0
    """Tokens: fewer are not cleared."""
    exclude_tools: tuple[str, ...] = ()
    clear_tool_inputs: bool | tuple[str, ...] = False
    """Arguments of cleared calls go too: of all tools, or of these."""
    instructions: str | None = None
    """How to sum up, instead of the server's own words."""
    pause: bool = False
    """The turn ends behind the compaction."""


class VendorModel(WireModel):
    """Base of what stands inside ``keepwarm``, where unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


class Bounds(VendorModel):
    """Amounts that are not to be exceeded; None means no bound."""

    input_uncached: Count | None = None
    """Prompt tokens that are not found in the cache."""
    input_cached: Count | None = None
    """Prompt tokens that are."""
    output: Count | None = None
    reasoning: Count | None = None
    """The part of the output that is thinking."""
    cost: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """In the currency of the server's price table."""
    residency: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """Block-seconds of KV in the cache; it ends no turn."""


class RequestBudget(Bounds):
    """Bounds on consumption in all."""

    scope: Literal["turn", "session", "tree"] = "session"
    """This turn; the session's own turns; those and the turns of all that draw on it."""
    soft: Bounds = Bounds()
    """From here on turns carry a warning."""


class SamplingOptions(VendorModel):
    """Sampling options that the stock fields lack; None means the server's default."""

    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """0 turns the filter off."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    stop: tuple[str, ...] = ()
    """The output ends before the first of these; given as a string or an array."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None


class CompactionOptions(VendorModel):
    """``keepwarm.compaction``: how the context is compacted where the request says that it is."""

    instructions: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    """How to sum up, instead of the server's own words."""
    ahead: bool = False
    """Near a named threshold, compute what comes behind a cut while the client's tools run."""


class ContextOptions(VendorModel):
    """``keepwarm.context``: compaction for clients that resend whole histories and know no
    compaction items."""

    compact_threshold: Tokens


class ToolReport(VendorModel):
    """What a client tells of a call that it answers: nobody checks it."""

    call_id: Annotated[str, Field(min_length=1, max_length=512)]
    ms: Annotated[float, Field(ge=0, le=2_678_400_000, allow_inf_nan=False)] | None = None
    """How long its tool ran, a month at most."""
    failed: bool = False


class KeepwarmOptions(VendorModel):
    """The ``keepwarm`` object of a request."""

    session: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Names a chain: created at first use, continued from its head later."""
    parent_session: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The session that this one is a part of: its tree's budget holds for both."""
    fork: bool = False
    """Another goes on from the same response: this turn leaves the chain."""
    budget: tuple[RequestBudget, ...] = ()
    """At most one of each scope; given as an object or an array of them."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Larger runs earlier."""
    deadline_ms: Annotated[int, Field(ge=1, le=86_400_000)] | None = None
    """Within which the first token is wanted."""
    expected_tool_ms: Annotated[int, Field(ge=0, le=86_400_000)] | None = None
    """How long the client's tools take after this turn; sizes the cache lease."""
    sampling: SamplingOptions = SamplingOptions()
    compaction: CompactionOptions = CompactionOptions()
    context: ContextOptions | None = None
    steer: Literal["item", "now"] = "item"
    """Where the turn ends when it is steered: behind the item that it writes, or at once."""
    lenient: bool = False
    """Schema keywords that cannot be enforced are checked afterwards instead of refused."""
    request_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The client's own name for this request: sent again, it starts nothing."""
    tools: tuple[ToolReport, ...] = ()
    """Of the calls whose outputs the request brings."""
    labels: dict[str, str] | None = None
    """The session's labels from now on, all of them; None: as they were."""
    on_disconnect: Literal["cancel", "continue"] | None = None
    """The fate of the session's turns when their socket is gone; None: as it was."""
    stats: bool = True
    """Whether responses carry a ``keepwarm`` object."""
    traceparent: Annotated[str, Field(pattern=TRACEPARENT)] | None = None
    """The span that the turn's is to lie under (W3C Trace Context, section 3.2)."""


class CreateRequest(WireModel):
    """One ``response.create``, complete: defaults filled in, cross-checks done."""

    model: Annotated[str, Field(max_length=512)] | None = None
    input: tuple[Item, ...] = ()
    references: tuple[ItemReference, ...] = ()
    """Entries of the input that stand for stored items; those are not among ``input`` yet."""
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    conversation: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The conversation that it continues; also ``keepwarm.session``."""
    store: bool = True
    background: bool = False
    """It goes on without its client, who asks for it later; of HTTP alone."""
    generate: bool = True
    """False: warm-up. ``prompt_cache_options.prewarm`` is folded in."""
    stream_id: str | None = None
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    late_choice: str | dict[str, Any] | None = None
    """The choice as it was sent, where it names what an item of the history may have brought."""
    parallel_tool_calls: bool = True
    text_format: TextFormat = TextFormat()
    verbosity: Literal["low", "medium", "high"] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=INT64_MAX)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=INT64_MAX)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncation: Literal["disabled", "auto"] = "disabled"
    metadata: dict[str, str] = Field(default_factory=dict)
    include: tuple[str, ...] = ()
    reasoning: ReasoningConfig = ReasoningConfig()
    service_tier: ServiceTier = "auto"
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    context_management: tuple[ContextManagement, ...] = ()
    compacts: Literal["no", "trigger", "alone"] = "no"
    """``trigger``: the input ends with a ``compaction_trigger``, the turn only compacts. ``alone``:
    so does this request, and it leaves nothing behind (``POST /v1/responses/compact``)."""
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    keepwarm: KeepwarmOptions = KeepwarmOptions()
    hosted_tools: tuple[str, ...] = ()
    """Types of the tools that were left out: they cannot run here."""
    body_digest: bytes = b""
    """Digest of the request, where it has a request id."""
    warnings: tuple[str, ...] = ()
    """Fields that were read and have no effect, a sentence each."""

    @property
    def may_compact(self) -> bool:
        """Its context may be recast."""
        entries = self.context_management or self.keepwarm.context is not None
        return bool(entries) or self.compacts != "no"

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report with each token; None when no log-probabilities are asked for."""
        return (self.top_logprobs or 0) if "message.output_text.logprobs" in self.include else None
