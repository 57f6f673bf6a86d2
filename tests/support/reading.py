"""Large frames and bodies read in this process, through the same pieces as from the real one."""

from sessions.fair_slots import FairSlots
from sessions.turns.reading import FromPieces, ReadContext, prepared, read_frame, to_pieces
from sessions.wire.fair_reading import CpuAllowance, Reading, TenantTurns
from sessions.wire.http_dialects import Body, ReadBody, read_body
from sessions.wire.read_process import NoText, ReadResult
from tests.support.clock import FakeClock
from tools_api.chat_families import chat_format_for
from tools_api.limits import DEFAULT_LIMITS

CONTEXT = ReadContext(
    limits=DEFAULT_LIMITS,
    models=frozenset({"default", "m"}),
    chat_format=chat_format_for("qwen3", lambda _: True),
)


def carried(found: ReadBody, context: ReadContext) -> ReadBody:
    """As it comes out at the other end of the pieces."""
    pieces = FromPieces()
    for kind, data in to_pieces(prepared(found.read, context)):
        pieces.add(kind, data)
    return ReadBody(read=pieces.read(), style=found.style)


def inline_reading(context: ReadContext = CONTEXT) -> Reading:
    """Reads at once, whoever asks."""

    async def read(job: bytes | Body) -> ReadResult:
        if isinstance(job, Body):
            found = read_body(job, context)
        else:
            try:
                found = ReadBody(read=read_frame(str(job, "utf-8"), context), style=None)
            except UnicodeDecodeError as error:
                raise NoText from error
        return ReadResult(body=carried(found, context), cpu_s=0.0)

    clock = FakeClock()
    return Reading(
        read=read,
        slots=FairSlots(1),
        allowance=CpuAllowance(share=1.0, burst_s=1.0, clock=clock),
        turns=TenantTurns(),
        max_inline_bytes=context.limits.max_inline_bytes,
        clock=clock,
    )
