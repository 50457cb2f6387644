"""The data of each client as a table on the screen: clients x domains x classes.

The command line prints it before anybody trains. It shows counts of samples, never the samples.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedshift.data.dealing.holdings import Holdings
from fedshift.data.dealing.shares import Ints
from fedshift.report.fitted import FittedTable

COLUMNS = 12  # largest number of classes that get a column each


def render_table(shown: Holdings) -> FittedTable:
    """One line per client and domain, one column per class.

    With more than twelve classes their number and the largest class take the place of the columns.
    """
    few = len(shown.classes) <= COLUMNS
    heads = ["client", "domain", *(shown.classes if few else ("classes", "largest class"))]
    lines = []
    for client, domain, counts in _lines(shown):
        largest = f"{shown.classes[counts.argmax()]} ({counts.max() / counts.sum():.0%})"
        cells = (
            [str(n) if n else "-" for n in counts] if few else [str((counts > 0).sum()), largest]
        )
        lines.append([client, domain, *cells, str(counts.sum())])
    return FittedTable("Training samples", [*heads, "samples"], lines)


def _lines(shown: Holdings) -> Iterable[tuple[str, str, Ints]]:
    """Client (only on its first line), domain and class counts (K,) of every line."""
    for client, by_domain in zip(shown.clients, shown.counts, strict=True):
        label = client
        for domain, counts in zip(shown.domains, by_domain, strict=True):
            if counts.any():
                yield label, domain, counts
                label = ""
