"""Tables that fit the screen: no word is cut, and columns that do not fit go to a second table.

``report.screen`` and ``report.partition`` lay their tables out here. Headings and the first column
wrap between words; numbers never wrap. Where even that is too wide, the columns are dealt to
several tables, one below the other, which all begin with the first column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

GAP = 2  # columns between two columns
EDGE = 1  # on either side


@dataclass(frozen=True)
class FittedTable:
    """A table that divides itself by the width it is given."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str | Text]]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The table, or several of fewer columns."""
        for number, columns in enumerate(self.groups(options.max_width)):
            title = self.title if number == 0 else f"{self.title} (continued)"
            yield self._table(title, [0, *columns], options.max_width)

    def groups(self, width: int) -> list[list[int]]:
        """The columns after the first, dealt to tables that are at most ``width`` wide."""
        out: list[list[int]] = [[]]
        used = start = self._least(0, width) + 2 * EDGE
        for column in range(1, len(self.heads)):
            wide = self._least(column, width) + GAP
            if used + wide > width and out[-1]:
                out.append([])
                used = start
            out[-1].append(column)
            used += wide
        return out

    def _cells(self, column: int) -> list[str]:
        return [str(line[column]) for line in self.lines]

    def _least(self, column: int, width: int) -> int:
        """The width below which a number or a word would be cut."""
        wrapped = [self.heads[column], *(self._cells(column) if column == 0 else ())]
        words = [cell_len(word) for text in wrapped for word in text.split()]
        whole = [cell_len(text) for text in self._cells(column)] if column else []
        return min(max([1, *words, *whole]), width // 2)

    def _most(self, column: int) -> int:
        """The width at which nothing wraps."""
        return max([1, *map(cell_len, (self.heads[column], *self._cells(column)))])

    def _table(self, title: str, columns: Sequence[int], width: int) -> Table:
        widths = [self._least(column, width) for column in columns]
        spare = width - sum(widths) - GAP * (len(columns) - 1) - 2 * EDGE
        for i, column in enumerate(columns):
            more = max(0, min(spare, self._most(column) - widths[i]))
            widths[i] += more
            spare -= more
        table = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE_HEAD)
        table.padding, table.pad_edge = (0, 1, 0, 0), False
        for column, wide in zip(columns, widths, strict=True):
            head = Text(self.heads[column])
            side = "right" if column else "left"
            table.add_column(head, justify=side, width=wide, overflow="fold")  # type: ignore[arg-type]
        for line in self.lines:
            table.add_row(*(_text(line[column]) for column in columns))
        return table


def _text(cell: str | Text) -> Text:
    """Text as it is, never as markup."""
    return cell if isinstance(cell, Text) else Text(cell)
