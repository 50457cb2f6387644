"""Makes docs/tables/codecs.md: accuracy over uploaded bytes; resumable, minutes on two cores."""

from __future__ import annotations

from pathlib import Path

import fedshift

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "codecs"
CODECS = (
    "half",
    "quantise[bits=16]",
    "quantise[bits=8]",
    "quantise[bits=4]",
    "top-k[fraction=0.1]",
    "top-k[fraction=0.01]",
)
SEEDS = range(3)


def main() -> None:
    """Run what is missing, then write the table."""
    methods = ["fedavg", *(f"fedavg + {codec}" for codec in CODECS)]
    found = fedshift.compare(methods, seeds=SEEDS, out=RUNS)
    up = {m: found.of(m, "digits")[0].summary["bytes"]["train"]["up"] for m in methods}
    lines = ["| method | upload | personal | global |", "|---|---:|---:|---:|"]
    for method in methods:
        cells = [str(found.cell(method, "digits", p)) for p in ("personal", "global")]
        lines.append(f"| `{method}` | {up[method] / up['fedavg']:.3f} | {' | '.join(cells)} |")
    (ROOT / "docs" / "tables" / "codecs.md").write_text("\n".join([*lines, ""]))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
