"""Write what is generated in docs/claims.md: the table of claims and the learning curves.

    python scripts/claims_page.py            from results/claims.jsonl, which claims run makes
    python scripts/claims_page.py --check    exit code 1 if the page has another table

The page's sentences are written by hand; the table stands between two comments and is replaced, and
the pictures are docs/assets/claims-PAPER.png. Neither data nor runs are needed.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from fedshift.claims.claim import Claim, read_claims
from fedshift.claims.run import Sides, kept_sides
from fedshift.claims.store import Results
from fedshift.claims.table import judge, markdown
from fedshift.report.looks import COLOURS

ROOT = Path(__file__).parents[1]
PAGE, ASSETS = ROOT / "docs" / "claims.md", ROOT / "docs" / "assets"
BLOCK = re.compile(r"(<!-- table -->\n).*(<!-- end of table -->)", flags=re.DOTALL)
Curves = dict[str, list[list[tuple[int, float]]]]  # by method, one for each seed


def page(text: str, claims: list[Claim], results: Results) -> str:
    """The page with the table as the results have it."""
    table = markdown(judge(claims, kept_sides(claims, results), results.rows))
    return BLOCK.sub(lambda found: f"{found[1]}\n{table}\n{found[2]}", text)


def curves(claim: Claim, sides: Sides, results: Results) -> Curves:
    """Accuracy over rounds of all finished runs of a claim."""
    out: Curves = defaultdict(list)
    for method, runs in ((claim.method, sides.method), (claim.control, sides.control)):
        found = [results.rows[run] for run in runs.values() if run in results.rows]
        out[method] += [row["curves"].get(claim.protocol, []) for row in found]
    return {method: kept for method, kept in out.items() if any(kept)}


def draw(paper: str, claims: list[Claim], results: Results) -> Path | None:
    """One picture for a paper: the curves of all claims with its main scenario and protocol."""
    from fedshift.report.figures import Drawing, save, style  # noqa: PLC0415  an extra

    sides = kept_sides(claims, results)
    (main,) = (claim for claim in claims if claim.main)
    alike = [c for c in claims if (c.scenario, c.protocol, c.set) == key(main) and not c.exact]
    found: Curves = {}
    for claim in alike:
        if claim.name in sides:
            found |= curves(claim, sides[claim.name], results)
    if not found:
        return None
    with style():
        figure = Drawing(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.subplots()
        for (method, seeds), colour in zip(found.items(), COLOURS * 3, strict=False):
            for one in seeds:
                axes.plot(*zip(*one, strict=True), color=colour, alpha=0.25, linewidth=0.8)
            rounds = [r for r, _ in seeds[0]]
            whole = [one for one in seeds if [r for r, _ in one] == rounds]
            means = [fmean(v) for v in zip(*([v for _, v in one] for one in whole), strict=True)]
            axes.plot(rounds, means, color=colour, label=f"{method} (n = {len(whole)})")
        axes.set_xlabel("round")
        axes.set_ylabel(f"accuracy in %, {main.protocol}")
        axes.set_title(f"{main.scenario}, bench", loc="left")
        axes.legend(frameon=False, fontsize=7)
        path = ASSETS / f"claims-{paper}.png"
        save(figure, path)
    return path


def key(claim: Claim) -> tuple[str, str, dict[str, object]]:
    """What curves in one picture have in common."""
    return claim.scenario, claim.protocol, claim.set


def main(check: bool) -> int:
    """Write, or compare."""
    claims, results = read_claims(), Results.open(ROOT / "results" / "claims.jsonl")
    old = PAGE.read_text()
    new = page(old, claims, results)
    if check:
        return int(old != new)
    PAGE.write_text(new)
    for paper in sorted({claim.name.partition("/")[0] for claim in claims}):
        drawn = draw(paper, [c for c in claims if c.name.startswith(f"{paper}/")], results)
        print(f"{paper}: {drawn.name if drawn else 'no runs yet'}")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
