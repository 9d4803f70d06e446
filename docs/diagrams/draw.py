"""Draws the documentation's diagrams: `python docs/diagrams/draw.py` writes the SVG files beside it.

Pictures are drawn by hand here rather than by a program in the reader's browser, so that pages load nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

FONT = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
INK, PALE, LINE = "#263238", "#607d8b", "#90a4ae"
BLUE, GREEN, ORANGE, GREY, PURPLE = "#e8eaf6", "#e0f2f1", "#fff3e0", "#eceff1", "#f3e5f5"
SOURCES = ("#90caf9", "#a5d6a7", "#ffcc80")


def text(x: float, y: float, words: str, *, size: float = 13, bold: bool = False, **style: str) -> str:
    """A line of text; `anchor` and `fill` are its style."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{style.get("anchor", "middle")}" '
        f'fill="{style.get("fill", INK)}"{weight}>{escape(words)}</text>'
    )


def rect(x: float, y: float, w: float, h: float, fill: str, *, radius: float = 6) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius:g}" fill="{fill}" '
        f'stroke="{LINE}"/>'
    )


def box(x: float, y: float, w: float, h: float, title: str, *lines: str, fill: str = GREY) -> str:
    """A rectangle with a title and lines below it, in its middle."""
    top = y + h / 2 - 8.5 * len(lines) + 4.5
    below = [text(x + w / 2, top + 17 * (i + 1), line, size=11.5, fill=PALE) for i, line in enumerate(lines)]
    return "".join([rect(x, y, w, h, fill), text(x + w / 2, top, title, bold=True), *below])


def arrow(x1: float, y1: float, x2: float, y2: float, label: str = "", **style: str) -> str:
    """A straight arrow with its label above the middle; `dash` and `color` are its style."""
    dash = f' stroke-dasharray="{style["dash"]}"' if "dash" in style else ""
    color = style.get("color", INK)
    line = (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="1.4"{dash} '
        'marker-end="url(#tip)"/>'
    )
    if not label:
        return line
    above = 6 if y1 == y2 else 14
    return line + text((x1 + x2) / 2, (y1 + y2) / 2 - above, label, size=11.5, fill=PALE)


def picture(width: int, height: int, title: str, parts: Iterator[str] | Sequence[str]) -> str:
    """A whole SVG file, on a white card that suits light and dark pages."""
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="{FONT}"><title>{escape(title)}</title>{tip}'
    )
    card = rect(0.5, 0.5, width - 1, height - 1, "#ffffff", radius=10)
    return "\n".join([head, card, *parts, "</svg>", ""])


# --- the pictures -----------------------------------------------------------------------------------------


def roles() -> str:
    """Who does what."""

    def parts() -> Iterator[str]:
        yield box(290, 24, 232, 62, "planner", "decides every step, from metadata", fill=BLUE)
        for place, (source, color) in enumerate(zip(("books", "code", "photos"), SOURCES, strict=True)):
            y = 150 + 74 * place
            yield box(24, y, 108, 50, source, "files", fill=color)
            yield arrow(132, y + 25, 190, y + 25)
            yield box(192, y, 150, 50, f"loader {place}", "reads, transforms", fill=GREEN)
        for place in range(2):
            y = 172 + 100 * place
            yield box(452, y, 158, 56, "constructor", "fills rows, slices", fill=ORANGE)
            yield arrow(610, y + 28, 668, y + 28)
            yield box(670, y, 146, 56, "training script", "global jax.Array", fill=GREY)
            yield rect(442, y - 10, 384, 76, "none", radius=10)
            for loader in range(3):
                yield arrow(342, 175 + 74 * loader, 450, y + 18 + 10 * loader, color=PALE)
        yield text(634, 158, "training process 0", size=11.5, fill=PALE)
        yield text(634, 356, "training process 1", size=11.5, fill=PALE)
        yield arrow(300, 148, 350, 90, dash="4 3")
        yield text(308, 112, "lengths", size=11.5, fill=PALE, anchor="end")
        yield arrow(450, 90, 520, 168, dash="4 3")
        yield text(502, 122, "what goes into which row", size=11.5, fill=PALE, anchor="start")
        yield text(
            396, 380, "tokens and patches go straight from loaders to constructors", size=11.5, fill=PALE
        )

    return picture(850, 400, "Sources, loaders, planner, constructors and training scripts of a job", parts())


STEP = (
    ("L", "P", "at the start: does all fit together?"),
    ("P", "L", "Lease: source, start, stop"),
    ("L", "L", "read and transform, keep the samples"),
    ("L", "P", "BlockReady: lengths, no payload"),
    ("P", "P", "compose step t, place it on the mesh"),
    ("P", "C", "Expect: rows of this process, digests"),
    ("P", "C", "StateAfter: what to go on with (first process)"),
    ("P", "L", "Order: samples of step t, by constructor"),
    ("L", "C", "Samples: tokens and patches, one message a step"),
    ("C", "C", "write rows, relay to peers, make arrays"),
    ("C", "P", "Complete (t)"),
    ("P", "C", "Visible (t): complete on every constructor"),
    ("C", "T", "batch, in order of steps"),
    ("T", "C", "takes it"),
    ("C", "P", "Delivered (t)"),
    ("P", "L", "Release (t), once all delivered it"),
)


def step() -> str:
    """A step, from lease to array, as a sequence."""
    lanes = {"L": (110, "SourceLoader", GREEN), "P": (370, "Planner", BLUE)}
    lanes |= {"C": (650, "DataConstructor", ORANGE), "T": (850, "trainer", GREY)}
    bottom = 84 + 34 * len(STEP)

    def parts() -> Iterator[str]:
        for x, name, fill in lanes.values():
            yield f'<line x1="{x}" y1="52" x2="{x}" y2="{bottom}" stroke="{LINE}" stroke-dasharray="3 4"/>'
            yield box(x - 70, 18, 140, 34, name, fill=fill)
        for place, (sender, receiver, words) in enumerate(STEP):
            y, x1, x2 = 84 + 34 * place, lanes[sender][0], lanes[receiver][0]
            if x1 == x2:
                yield rect(x1 - 5, y - 10, 10, 20, "#ffffff", radius=2)
                yield text(x1 + 12, y + 4, words, size=11.5, anchor="start")
                continue
            gap = 4 if x2 > x1 else -4
            yield arrow(x1 + gap, y, x2 - gap, y)
            yield text((x1 + x2) / 2, y - 5, words, size=11)

    return picture(940, bottom + 20, "A step, from lease to array", parts())


def chain() -> str:
    """What a strategy's primitives decide, in order."""

    def parts() -> Iterator[str]:
        yield rect(150, 24, 430, 104, "none", radius=10)
        yield text(250, 118, "compose: without the mesh", size=11.5, fill=PALE)
        yield rect(604, 24, 142, 104, "none", radius=10)
        yield text(675, 38, "place: on the mesh", size=11.5, fill=PALE)
        yield box(12, 44, 116, 50, "samples", "their metadata", fill=GREEN)
        names = (("mix", 166), ("pack", 306), ("regroup", 446), ("balance", 620))
        for name, x in names:
            yield box(x, 44, 110, 50, name, fill=BLUE)
        yield box(764, 44, 130, 50, "rows in order", "on the mesh", fill=ORANGE)
        for x1, x2 in ((128, 164), (276, 304), (416, 444), (556, 618), (730, 762)):
            yield arrow(x1, 69, x2, 69)
        yield box(446, 168, 110, 40, "cost", fill=PURPLE)
        for x in (361, 501, 675):
            yield arrow(501, 168, x, 96, dash="4 3")

    return picture(910, 226, "mix, pack and regroup compose a step; balance places it", parts())


def law() -> str:
    """One step's content, placed on two meshes."""

    def parts() -> Iterator[str]:
        for place, (title, words) in enumerate(
            (("recipe", "sources, strategy"), ("seed", ""), ("t", "step"))
        ):
            yield box(20, 30 + 66 * place, 130, 52, title, *([words] if words else []), fill=BLUE)
            yield arrow(150, 56 + 66 * place, 218, 122)
        yield box(
            220, 76, 170, 92, "content of step t", "samples, rows, bytes", "one content digest", fill=GREEN
        )
        yield arrow(390, 105, 478, 66, "dp=2")
        yield arrow(390, 140, 478, 182, "dp=4")
        yield box(480, 34, 200, 62, "2 processes, 1 loader", "rows 0-3 and 4-7", fill=ORANGE)
        yield box(480, 150, 200, 62, "4 processes, 9 loaders", "rows 0-1, 2-3, 4-5, 6-7", fill=ORANGE)
        yield text(580, 128, "the same eight rows", size=12, fill=PALE)

    return picture(710, 246, "What a step delivers depends on recipe, seed and step alone", parts())


def resume() -> str:
    """A job that ends, and one of another size that goes on."""

    def parts() -> Iterator[str]:
        yield text(20, 44, "first job, dp=2", anchor="start", bold=True)
        for number in range(8):
            x = 20 + 78 * number
            kind = GREEN if number < 5 else GREY
            yield box(x, 58, 72, 40, f"step {number}", fill=kind)
        yield text(215, 120, "delivered", size=11.5, fill=PALE)
        yield text(527, 120, "planned and fetched ahead, never taken", size=11.5, fill=PALE)
        yield box(310, 142, 200, 52, "checkpoint", "model and data behind step 4", fill=PURPLE)
        yield arrow(368, 100, 400, 140)
        yield arrow(430, 196, 446, 250)
        yield text(20, 236, "second job, dp=4, other loaders", anchor="start", bold=True)
        for number in range(5, 10):
            yield box(20 + 78 * number, 252, 72, 40, f"step {number}", fill=GREEN)
        yield text(605, 314, "the same rows as the first job would have had", size=11.5, fill=PALE)

    return picture(820, 330, "A job goes on from its checkpoint, on another mesh", parts())


SEGMENTS = (
    ((0, 5, 0), (5, 2, 1), (7, 1, None)),
    ((0, 3, 2), (3, 3, 0), (6, 2, 1)),
    ((0, 8, 0),),
    ((0, 4, 1), (4, 4, 0)),
)  # of each row: start, places, source


def places() -> str:
    """Rows of places, cut over the mesh."""
    side, left, top = 54, 150, 66

    def parts() -> Iterator[str]:
        for row, segments in enumerate(SEGMENTS):
            y = top + 48 * row + (18 if row > 1 else 0)
            yield text(left - 14, y + 24, f"row {row}", anchor="end", size=12)
            for number, (start, size, source) in enumerate(segments, start=1):
                fill = "#fafafa" if source is None else SOURCES[source]
                words = "padding" if source is None else f"segment {number}"
                yield rect(left + side * start, y, side * size - 3, 38, fill, radius=3)
                shown = words if size > 1 else "pad"
                yield text(left + side * (start + size / 2) - 1, y + 24, shown, size=11.5)
        middle = left + side * 4 - 2
        yield f'<line x1="{middle}" y1="48" x2="{middle}" y2="284" stroke="{INK}" stroke-dasharray="6 4"/>'
        yield f'<line x1="110" y1="168" x2="604" y2="168" stroke="{INK}" stroke-dasharray="6 4"/>'
        yield text(left + side * 2, 40, "cp 0", bold=True)
        yield text(left + side * 6, 40, "cp 1", bold=True)
        yield text(40, 122, "dp 0", bold=True)
        yield text(40, 230, "dp 1", bold=True)
        yield text(
            left + side * 4, 308, "8 places a row (seq_len); colours are sources", size=11.5, fill=PALE
        )
        for place, words in enumerate(("device (0, 0)", "device (0, 1)", "device (1, 0)", "device (1, 1)")):
            yield box(640, 60 + 58 * place, 150, 44, words, "2 rows x 4 places", fill=ORANGE)

    return picture(810, 326, "Four packed rows over a mesh of dp=2 and cp=2", parts())


PICTURES: dict[str, Callable[[], str]] = {
    "chain": chain, "law": law, "places": places, "resume": resume, "roles": roles, "step": step,
}  # fmt: skip


def main() -> None:
    """Write every picture beside this file."""
    for name, draw in PICTURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
