"""The demo's tables: one line per turn, and what the cache saved in all."""

from collections.abc import Sequence

from keepwarm import Usage
from keepwarm.demo.agent import PlayedTurn

HEADER = (
    f"{'session':<8}{'turn':>4}{'input':>7}{'cached':>8}{'output':>8}{'hit':>6}"
    f"{'TTFT ms':>9}{'tok/s':>8}{'cost $':>11}  what it did"
)
DEED_WIDTH = 72


def line(turn: PlayedTurn) -> str:
    """One turn as the server accounts for it; the time to first token is the client's."""
    response, usage = turn.response, turn.response.usage
    stats = response.keepwarm
    pace = stats["timing"]["tokens_per_s"]
    ttft = "-" if response.ttft_s is None else f"{response.ttft_s * 1000:.1f}"
    return (
        f"{turn.session:<8}{stats['turn']:>4}{usage.input_tokens:>7}{usage.cached_tokens:>8}"
        f"{usage.output_tokens:>8}{usage.hit_ratio:>6.0%}{ttft:>9}"
        f"{'-' if pace is None else format(pace, '.1f'):>8}{stats['cost']['turn']:>11.6f}"
        f"  {shortened(turn.deed)}"
    )


def shortened(text: str) -> str:
    """``text`` as it may stand in a table: printable, on one line, not too long."""
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return shown if len(shown) <= DEED_WIDTH else shown[: DEED_WIDTH - 3] + "..."


def summary(turns: Sequence[PlayedTurn]) -> str:
    """The consumption of all ``turns``, and what it would have been without the cache."""
    usage = sum((turn.response.usage for turn in turns), Usage())
    cost = sum(turn.response.keepwarm["cost"]["turn"] for turn in turns)
    saved = sum(turn.response.keepwarm["cost"]["saved"] for turn in turns)
    forced = sum(turn.response.keepwarm["tokens"]["forced"] for turn in turns)
    computed = usage.input_tokens - usage.cached_tokens
    return (
        f"{len(turns)} turns: {usage.input_tokens} input tokens, of which {computed} were computed "
        f"and {usage.cached_tokens} ({usage.hit_ratio:.0%}) came from the cache.\n"
        f"{usage.output_tokens} output tokens, {forced} of them forced by the tools' schemas.\n"
        f"Cost ${cost:.6f}; without the cache it would have been ${cost + saved:.6f}."
    )
