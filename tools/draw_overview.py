"""Draw ``docs/overview.svg``, the picture in the README.

    python tools/draw_overview.py

Colours follow the reader's light or dark scheme; text is set in the reader's own font.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

TARGET = Path(__file__).parents[1] / "docs" / "overview.svg"
WIDTH, HEIGHT = 860, 330
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328; }
  .head { font-weight: 600; font-size: 15px; }
  .small { font-size: 12px; fill: #59636e; }
  .box { fill: #f6f8fa; stroke: #8c959f; }
  .warm { fill: #ffe3c2; stroke: #bc4c00; }
  .new { fill: #ddf4ff; stroke: #0969da; }
  .line { stroke: #59636e; stroke-width: 1.5; fill: none; }
  .tip { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .small { fill: #9198a1; }
    .box { fill: #151b23; stroke: #656c76; }
    .warm { fill: #5a2d0c; stroke: #f0883e; }
    .new { fill: #0c2d4d; stroke: #4493f8; }
    .line { stroke: #9198a1; }
    .tip { fill: #9198a1; }
  }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with a head and lines below it."""

    x: int
    y: int
    width: int
    height: int
    head: str
    lines: tuple[str, ...] = ()
    kind: str = "box"

    def svg(self) -> str:
        """The rectangle and its text."""
        middle = self.x + self.width // 2
        shape = (
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" '
            f'height="{self.height}" rx="6"/>'
        )
        texts = [_text(middle, self.y + 24, self.head, "head")]
        for number, line in enumerate(self.lines):
            texts.append(_text(middle, self.y + 46 + 18 * number, line, "small"))
        return "\n".join([shape, *texts])


def _text(x: int, y: int, words: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def _arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    return f'<path class="line" d="M{x1} {y1} L{x2} {y2}" marker-end="url(#tip)"/>'


def _turns() -> list[str]:
    """Three turns of a session: what is warm, what is new."""
    drawn = [_text(250, 222, "what a turn computes", "head", "start")]
    for number, (warm, new) in enumerate(((0, 150), (150, 46), (196, 62))):
        y = 234 + 28 * number
        drawn.append(_text(330, y + 15, f"turn {number + 1}", "small", "end"))
        if warm:
            drawn.append(f'<rect class="warm" x="340" y="{y}" width="{warm}" height="20" rx="3"/>')
        x = 340 + warm
        drawn.append(f'<rect class="new" x="{x}" y="{y}" width="{new}" height="20" rx="3"/>')
    drawn.append('<rect class="warm" x="640" y="240" width="18" height="14" rx="3"/>')
    drawn.append(_text(666, 252, "in the cache already", "small", "start"))
    drawn.append('<rect class="new" x="640" y="266" width="18" height="14" rx="3"/>')
    drawn.append(_text(666, 278, "sent and computed", "small", "start"))
    return drawn


def overview() -> str:
    """The picture."""
    boxes = [
        Box(x=16, y=24, width=170, height=104, head="your agent",
            lines=("keepwarm, openai,", "pydantic-ai, Codex ...", "runs its own tools")),
        Box(x=316, y=24, width=228, height=150, head="front end",
            lines=("WebSocket and HTTP", "sessions, transcripts, forks", "budgets, accounts, keys",
                   "schemas to grammars", "no torch")),
        Box(x=640, y=24, width=204, height=150, head="engine",
            lines=("scheduler: short turns first", "radix-tree prefix cache", "paged KV, leases",
                   "drafts, forced tokens", "CPU or one GPU")),
    ]  # fmt: skip
    parts = [box.svg() for box in boxes]
    parts += [_arrow(186, 62, 314, 62), _arrow(316, 96, 188, 96)]
    parts += [_text(251, 54, "what is new", "small"), _text(251, 114, "text, calls, cost", "small")]
    parts += [_arrow(544, 62, 638, 62), _arrow(640, 96, 546, 96)]
    parts += [_text(592, 54, "new tokens", "small"), _text(592, 114, "tokens", "small")]
    parts += [Box(x=16, y=160, width=170, height=54, head="its tools", lines=("anywhere",)).svg()]
    parts += [_arrow(101, 128, 101, 158)]
    body = "\n".join([*parts, *_turns()])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        "<title>An agent, the server's front end and its engine; a turn computes what is new"
        f"</title>\n<style>{STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
        f"{body}\n</svg>\n"
    )


if __name__ == "__main__":
    TARGET.write_text(overview(), encoding="utf-8")
