"""Draws docs/dispatch_and_combine.svg: the way of six tokens through four experts on two ranks.

python docs/_site/exchange_picture.py          # writes the picture
python docs/_site/exchange_picture.py --check  # says whether it is what this draws
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "dispatch_and_combine.svg"

RANKS, EXPERTS_PER_RANK = 2, 2
CHOICES = ((0, 2), (1, 3), (0, 1), (3, 1), (2, 3), (0, 3))
"""The two experts of each token. Each rank has three tokens; token 2 chooses two of one rank."""
COLOURS = ("#0d9488", "#2563eb", "#9333ea", "#db2777", "#ea580c", "#65a30d")
TOKENS_PER_RANK = len(CHOICES) // RANKS

WIDTH, HEIGHT, TOP, RANK_HEIGHT, GAP = 820, 392, 74, 138, 22
CELL, PITCH = 26, 40
LEFT, MIDDLE, RIGHT = (20, 130), (302, 216), (670, 130)
"""Left edge and width of the three columns of boxes."""

STYLE = """\
  text { font: 13px system-ui, sans-serif; fill: #1f2937; text-anchor: middle }
  .title { font-size: 15px; font-weight: 600 }
  .small { font-size: 11px }
  .token { fill: #ffffff; font-weight: 600; font-size: 12px }
  .box { fill: #f3f4f6; stroke: #9ca3af }
  .expert { fill: #ffffff; stroke: #9ca3af }
  .way { fill: none; stroke-width: 2; opacity: 0.75 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e5e7eb }
    .box { fill: #1f2937; stroke: #6b7280 }
    .expert { fill: #111827; stroke: #6b7280 }
  }"""


def rank_of(expert: int) -> int:
    """Returns the rank that holds an expert."""
    return expert // EXPERTS_PER_RANK


def top_of(rank: int) -> int:
    """Returns the upper edge of a rank's boxes."""
    return TOP + rank * (RANK_HEIGHT + GAP)


def height_of(token: int) -> float:
    """Returns the middle of a token's cell in its own rank's boxes."""
    return top_of(token // TOKENS_PER_RANK) + 42 + token % TOKENS_PER_RANK * 38


def arrivals(rank: int) -> list[int]:
    """Returns the tokens that a rank receives, each once, however many experts it chose there."""
    return [t for t, chosen in enumerate(CHOICES) if rank in map(rank_of, chosen)]


def arrival_at(rank: int, token: int) -> float:
    """Returns the height at which a token's row arrives on a rank."""
    rows = arrivals(rank)
    return top_of(rank) + RANK_HEIGHT * (rows.index(token) + 1) / (len(rows) + 1)


def way(x: float, y: float, to_x: float, to_y: float, token: int) -> str:
    """Returns a curve in a token's colour."""
    middle = (x + to_x) / 2
    curve = f"M{x:g} {y:g} C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}"
    return f'<path class="way" stroke="{COLOURS[token]}" d="{curve}"/>'


def cell(x: float, y: float, token: int) -> Iterator[str]:
    """Yields a token's square around a point."""
    half = CELL / 2
    yield (
        f'<rect x="{x - half:g}" y="{y - half:g}" width="{CELL}" height="{CELL}" rx="5" '
        f'fill="{COLOURS[token]}"/>'
    )
    yield f'<text class="token" x="{x:g}" y="{y + 4:g}">{token}</text>'


def boxes(rank: int) -> Iterator[str]:
    """Yields a rank's three boxes with their captions, and its experts."""
    y = top_of(rank)
    for (x, width), caption in zip((LEFT, MIDDLE, RIGHT), ("tokens", "", "results"), strict=True):
        yield (f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{RANK_HEIGHT}" rx="8"/>')
        if caption:
            text = f"rank {rank}: {caption}"
            yield f'<text class="small" x="{x + width / 2:g}" y="{y + 18}">{text}</text>'
    for at in range(EXPERTS_PER_RANK):
        expert, top = rank * EXPERTS_PER_RANK + at, y + 10 + at * (RANK_HEIGHT - 14) / 2
        users = "  ".join(str(t) for t, chosen in enumerate(CHOICES) if expert in chosen)
        x, width, height = MIDDLE[0] + 48, MIDDLE[1] - 96, (RANK_HEIGHT - 26) / 2
        yield (
            f'<rect class="expert" x="{x}" y="{top:g}" width="{width}" height="{height:g}" rx="6"/>'
        )
        yield f'<text x="{x + width / 2:g}" y="{top + 24:g}">expert {expert}</text>'
        tokens = f"tokens {users}"
        yield f'<text class="small" x="{x + width / 2:g}" y="{top + 42:g}">{tokens}</text>'


def drawn() -> str:
    """Returns the picture."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Six tokens go from two ranks to four experts, and their results come home">',
        f"<style>\n{STYLE}\n</style>",
    ]
    for x, title, small in (
        (226, "dispatch", "a row goes once to each rank that has an expert of its choice"),
        (594, "combine", "the results of its experts come home as one weighted sum"),
    ):
        lines.append(f'<text class="title" x="{x}" y="26">{title}</text>')
        lines.append(f'<text class="small" x="{x}" y="46">{small}</text>')
    for rank in range(RANKS):
        lines += boxes(rank)
    out_of, into = LEFT[0] + LEFT[1] / 2, RIGHT[0] + RIGHT[1] / 2
    ends = MIDDLE[0] + 22, MIDDLE[0] + MIDDLE[1] - 22
    for rank in range(RANKS):
        for token in arrivals(rank):
            y = arrival_at(rank, token)
            lines.append(way(out_of, height_of(token), ends[0], y, token))
            lines.append(way(ends[1], y, into, height_of(token), token))
            for x in ends:
                lines.append(f'<circle cx="{x}" cy="{y:g}" r="5" fill="{COLOURS[token]}"/>')
    for token in range(len(CHOICES)):
        lines += cell(out_of, height_of(token), token)
        lines += cell(into, height_of(token), token)
    return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    """Writes or checks the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        PICTURE.write_text(drawn(), encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != drawn():
        print(f"{PICTURE} is not what {Path(__file__).name} draws", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
