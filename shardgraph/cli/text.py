"""Text laid out for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardgraph.format.schema import Attribute, Column, Schema, Store

SHAPES = "N nodes and E edges of a graph, * any other length"
"""What the letters in the shapes of `columns_of` stand for."""


def table(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Rows of cells as aligned lines, two blanks between columns; some columns to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def columns_of(schema: Schema) -> Iterator[tuple[str, str, str]]:
    """Name, dtype and shape of what each column holds of one graph, as the user will see it.

    `SHAPES` says how lengths that vary are told.
    """
    for store in schema.stores:
        for attribute in store.attributes:
            if attribute.kind == "num_nodes":
                yield (
                    "num_nodes" if store.key is None else f"{store.node_axis}/num_nodes",
                    "int",
                    "",
                )
            yield from _columns_of(store, attribute, attribute.name)


def _columns_of(store: Store, attribute: Attribute, name: str) -> Iterator[tuple[str, str, str]]:
    column = attribute.column
    if column is not None and attribute.kind == "tensor":
        yield column.name, column.dtype, _shape(store, column, name)
    elif column is not None:
        yield column.name, attribute.kind, ""
    for item in attribute.items:
        yield from _columns_of(store, item, name)


def _shape(store: Store, column: Column, name: str) -> str:
    """The shape of one graph's tensor; which length it counts is told by name, as PyG does."""
    if column.row_shape is None:
        return "[varies]"
    shape = [str(size) for size in column.row_shape]
    if not column.per_graph and column.cat_dim is not None:
        edges = isinstance(store.key, tuple) or "edge" in name
        nodes = isinstance(store.key, str) or name in {"x", "pos", "z", "batch"}
        length = "E" if edges else "N" if nodes else "*"
        shape.insert(column.cat_dim % (len(shape) + 1), length)
    return f"[{', '.join(shape)}]"
