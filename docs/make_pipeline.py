"""Draws docs/pipeline.svg: what happens between a file and a JAX function.

python docs/make_pipeline.py
"""

import pathlib

HERE = pathlib.Path(__file__).parent
FILE = HERE / "pipeline.svg"
WIDTH, HEIGHT, TOP, BOX = 880, 208, 44, 108
STAGES = (
    (
        "source",
        "#8a8f98",
        ("HLO text, proto", "StableHLO text", "MLIR bytecode", "portable artifact", "live JAX objects"),
    ),
    ("readers", "#3b7dd8", ("told by content", "elided constants", "are refused", "", "-> ir.Module")),
    (
        "check, normalize",
        "#3b7dd8",
        ("types, structure", "fusions inlined", "all unsupported", "ops listed", "at once"),
    ),
    ("evaluate", "#3b7dd8", ("op rules", "each distinct op", "is traced once,", "then copied", "-> Jaxpr")),
    ("Program", "#2c9c69", ("a JAX callable", "jit  grad  vmap", "hessian  scan", "to any order,", "same bits")),
)


def stage(position, title, color, lines):
    """One box, its title and its lines."""
    pitch = WIDTH / len(STAGES)
    left, width = position * pitch + 8, pitch - 30
    middle = left + width / 2
    parts = [
        f'<rect x="{left:.0f}" y="{TOP}" width="{width:.0f}" height="{BOX + 32}" rx="8" fill="{color}" '
        f'fill-opacity="0.12" stroke="{color}" stroke-width="1.5"/>',
        f'<text x="{middle:.0f}" y="{TOP - 12}" font-weight="600" fill="{color}">{title}</text>',
    ]
    for row, line in enumerate(lines):
        parts.append(
            f'<text x="{middle:.0f}" y="{TOP + 30 + 24 * row}" fill="#7a8088">{line.replace(">", "&gt;")}</text>'
        )
    if position < len(STAGES) - 1:
        start, y = left + width + 3, TOP + (BOX + 32) / 2
        parts.append(
            f'<path d="M{start:.0f} {y:.0f} h13 m-5 -5 l5 5 l-5 5" fill="none" stroke="#8a8f98" stroke-width="2"/>'
        )
    return parts


def draw():
    """Returns the picture as SVG text, legible on light and on dark."""
    body = [
        part for position, (title, color, lines) in enumerate(STAGES) for part in stage(position, title, color, lines)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
    head += 'font-size="14" text-anchor="middle" role="img" aria-label="from a file to a JAX function">'
    return "\n".join([head, *body, "</svg>\n"])


if __name__ == "__main__":
    FILE.write_text(draw())
