"""Draws docs/assets/methods/*.svg: what happens at a client, on the wire and at the server.

Three lanes, time runs down. All text is on filled boxes of its own, so that the pictures can be
read on light and on dark pages. ``scripts/method_pages.py`` writes them with everything else.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "assets" / "methods"
LANES = {"client": (20, 330), "wire": (370, 220), "server": (610, 330)}  # x and width
COLOURS = {"client": "#d9f0ea", "wire": "#fdeccc", "server": "#dfe6fa"}
TITLES = {"client": "at each client", "wire": "on the wire", "server": "at the server"}
LINE, PAD, GAP = 18, 10, 14
INK, EDGE = "#1c2430", "#6b7a8c"

Step = tuple[str, str]  # lane, or "down" and "up" on the wire; text

PICTURES: dict[str, tuple[str, Sequence[Step]]] = {
    "fdse": (
        "FDSE: one round",
        (
            ("server", "Shared: extractors, head, BN_DFE. Personal: the erasers of each client."),
            ("down", "shared entries, the client's own erasers"),
            ("client", "Every layer: extractor, BN_DSE, eraser, BN_DFE (Eqs. 2 and 3)."),
            (
                "client",
                "Train: task loss + λ L_con, which pulls the statistics of erased features to "
                "the received ones (Eqs. 4 to 7).",
            ),
            ("client", "Statistics of BN_DSE stay here."),
            ("up", "shared entries, the client's own erasers"),
            ("server", "Consensus: each shared layer moves where no client objects (Eq. 8)."),
            ("server", "Similarity: erasers are mixed among clients that are alike (Eq. 9)."),
            ("client", "New site: erasers are fitted to unlabelled inputs by L_con alone."),
        ),
    ),
    "f2dc": (
        "F2DC: one round",
        (
            ("server", "Shared: backbone and head. Known: examples and domain of each client."),
            ("down", "backbone, head"),
            ("client", "A_D scores the last map f; mask M (Eq. 3) splits it: f+ and f- (Eq. 4)."),
            ("client", "A_C corrects f-: f* (Eq. 6). f~ = f+ + f* goes to the head."),
            (
                "client",
                "Train: task loss + λ1 L_DFD (f+ tells the class, f- a wrong one, both differ; "
                "Eq. 5) + λ2 L_DFC (f* tells the class; Eq. 7).",
            ),
            ("client", "A_D, A_C and the auxiliary head m stay here."),
            ("up", "backbone, head, number of examples"),
            ("server", "Mean with weights by size and by the distance of a client's share from "
             "that of a domain (Eqs. 10 and 11)."),
        ),
    ),
    "fedka": (
        "FedKA: one round",
        (
            ("server", "Holds unlabelled inputs X_T of the target and the encoder f_e^G."),
            ("down", "model with domain classifier f_d; features f_e^G(X_T)"),
            ("client", "Train on labelled sources: task loss."),
            ("client", "f_d tells source from target; f_e^k, reversed by λ_p, hides it (Eq. 2)."),
            ("client", "MK-MMD: source features are drawn to the target's, λ_p (Eqs. 5 to 7)."),
            ("up", "model with f_d; no feature of a source"),
            ("server", "Mean of the models."),
            ("server", "Voting: the clients' models label X_T by majority (Eq. 10)."),
            ("server", "The mean is fine-tuned on these labels by λ_p times the step, and sent."),
        ),
    ),
    "csac": (
        "CSAC: acquisition, fusion, calibration",
        (
            ("down", "common start"),
            ("client", "Round 1, acquisition: a long training with smoothed labels (Eq. 2)."),
            ("client", "A frozen copy L^h is kept here for the whole run."),
            ("up", "model"),
            ("server", "Fusion, layer by layer: weight in proportion to the distance from the mean "
             "layer (Eqs. 3 and 4)."),
            ("down", "fused model M"),
            ("client", "Calibration: layers of M and of L^h are projected to one size (Eq. 5)."),
            ("client", "Train: task loss + λ L_AL, MMD of every pair of layers, weighted by "
             "attention (Eqs. 6 to 11)."),
            ("up", "calibrated model"),
            ("server", "Fusion again; the next round calibrates what it gives."),
        ),
    ),
    "feddebias": (
        "FedDebias: one round",
        (
            ("client", "Means of M = 10 random inputs (Algorithm 2)."),
            ("up", "8 means of inputs: at enrolment and after each round"),
            ("server", "D_p: a batch drawn from all clients' means, label 1/C each."),
            ("down", "model with projection θ, batch D_p"),
            ("client", "Max step: θ learns where local and received features differ (Eq. 2)."),
            (
                "client",
                "Min step: task loss + λ · flat output on D_p + μ L_con, contrast in the "
                "projection (Eqs. 3 and 5).",
            ),
            ("up", "model with θ, new means"),
            ("server", "Mean of models and projections; D_p is drawn anew."),
        ),
    ),
}  # fmt: skip


def wrapped(text: str, width: int) -> list[str]:
    """Lines that fit into a box, at most 7.6 pixels a letter."""
    return textwrap.wrap(text, int((width - 2 * PAD) / 7.6))


def box(lane: str, y: int, lines: Sequence[str], *, arrow: str = "") -> str:
    """A box with its text; on the wire with an arrow under it."""
    x, width = LANES[lane]
    height = len(lines) * LINE + 2 * PAD
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
        f'fill="{COLOURS[lane]}" stroke="{EDGE}"/>'
    ]
    for i, line in enumerate(lines):
        parts.append(
            f'<text x="{x + PAD}" y="{y + PAD + 13 + i * LINE}" fill="{INK}">{escape(line)}</text>'
        )
    if arrow:
        left, right, middle = x - 34, x + width + 14, y + height // 2
        ends = (
            ((right, x + width), (x, left)) if arrow == "down" else ((left, x), (x + width, right))
        )
        for i, (start, end) in enumerate(ends):
            head = ' marker-end="url(#head)"' if i else ""
            parts.append(
                f'<line x1="{start}" y1="{middle}" x2="{end}" y2="{middle}" stroke="{EDGE}" '
                f'stroke-width="2"{head}/>'
            )
    return "\n".join(parts)


def drawn(title: str, steps: Sequence[Step]) -> str:
    """One picture."""
    y, parts = 20, []
    for lane, text in TITLES.items():
        parts.append(box(lane, y, [text]))
    y += LINE + 2 * PAD + GAP
    for where, text in steps:
        lane = where if where in LANES else "wire"
        lines = wrapped(text, LANES[lane][1])
        parts.append(box(lane, y, lines, arrow="" if where in LANES else where))
        y += len(lines) * LINE + 2 * PAD + GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {y + 6}" '
            'font-family="system-ui, sans-serif" font-size="14" role="img">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
            f'markerHeight="6" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{EDGE}"/>'
            "</marker></defs>",
            *parts,
            "</svg>\n",
        ]
    )


def files() -> Iterator[tuple[Path, str]]:
    """Every picture with its file."""
    for name, (title, steps) in PICTURES.items():
        yield FOLDER / f"{name}.svg", drawn(title, steps)
