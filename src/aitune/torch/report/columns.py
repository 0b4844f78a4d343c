"""Rows of figures with a remark each, for any width: in one table where it has room, else with the remarks below."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aitune.torch.report.wrapping import wrap_text

if TYPE_CHECKING:
    from rich.table import Table

NAME_WIDTH = 26
"""Characters of a name in a line; longer ones go on in the next."""

REMARK_WIDTH = 32
"""A remark with less room than this would be read downwards; it goes below the table."""

_GAP = 2


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        heading: What stands above it; may have several lines.
        cells: One text a row.
    """

    heading: str
    cells: Sequence[str]

    @property
    def width(self) -> int:
        """Characters that the longest line takes."""
        from rich.cells import cell_len

        return max(cell_len(line) for text in (self.heading, *self.cells) for line in text.split("\n"))


@dataclass(frozen=True)
class Rows:
    """Rows of a name, figures and perhaps a remark.

    Args:
        names: What the rows are called.
        figures: Figures, which are never broken.
        remarks: A text for each row.
    """

    names: Column
    figures: Sequence[Column]
    remarks: Column | None = None

    @property
    def width(self) -> int:
        """Characters that names and figures take side by side."""
        return min(NAME_WIDTH, self.names.width) + sum(_GAP + column.width for column in self.figures)

    def render(self, width: int) -> str:
        """Write the rows in lines of at most ``width`` characters.

        Args:
            width: Characters in a line; names and figures that need more are broken.
        """
        remarks = self.remarks
        inside = remarks is not None and self.width + _GAP + min(REMARK_WIDTH, remarks.width) <= width
        table = _empty_table()
        table.add_column(self.names.heading, max_width=NAME_WIDTH, overflow="fold")
        for column in self.figures:
            table.add_column(column.heading, justify="right", no_wrap=self.width <= width, overflow="fold")
        # What is left over goes to the last column, so that the figures stay beside the names.
        table.add_column(remarks.heading if inside and remarks else "", ratio=1, overflow="fold")
        for number, name in enumerate(self.names.cells):
            figures = [column.cells[number] for column in self.figures]
            table.add_row(name, *figures, remarks.cells[number] if inside and remarks else "")
        return "\n".join([_printed(table, width), *([] if inside else self._below(width))])

    def _below(self, width: int) -> Iterator[str]:
        if self.remarks is not None:
            for name, remark in zip(self.names.cells, self.remarks.cells, strict=True):
                yield wrap_text(f"{name}: {remark}", width, "  ")


def as_many_as_fit(names: Column, figures: Sequence[Column], width: int) -> list[Rows]:
    """Spread figures over as many tables as the width asks for.

    Args:
        names: What the rows are called.
        figures: The figures.
        width: Characters in a line.
    """
    parts: list[list[Column]] = []
    for column in figures:
        if parts and Rows(names, [*parts[-1], column]).width <= width:
            parts[-1].append(column)
        else:
            parts.append([column])
    return [Rows(names, part) for part in parts]


def _empty_table() -> Table:
    from rich.box import Box
    from rich.table import Table

    # Spaces and dashes alone: a report goes into log files and terminals of any encoding.
    plain = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    return Table(box=plain, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)


def _printed(table: Table, width: int) -> str:
    from rich.console import Console

    text = io.StringIO()
    console = Console(
        file=text, width=width, color_system=None, force_terminal=False, markup=False, emoji=False, highlight=False
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())
