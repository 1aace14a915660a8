"""Graphs from a table of edges and, where there is one, a table of nodes; in any order of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert.build import as_dtype, make_data

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """Names of the columns of one table."""

    ids: tuple[str, ...]
    """Of nodes: the id; of edges: the source and the target."""
    graph: str | None
    values: tuple[str, ...]
    labels: str | None = None


class EdgeTables:
    """The graphs of one or two tables, given by their columns as arrays.

    Graphs come in ascending order of their id. Nodes are those of the table of nodes, in its
    order, or else the ids that edges join, in ascending order.
    """

    def __init__(
        self,
        edges: Mapping[str, NDArray[Any]],
        edge_columns: TableColumns,
        nodes: Mapping[str, NDArray[Any]] | None,
        node_columns: TableColumns | None,
    ) -> None:
        self._edges, self._edge_columns = edges, edge_columns
        self._nodes, self._node_columns = nodes, node_columns
        graph_of_edges = _graph_of(edges, edge_columns)
        graph_of_nodes = graph_of_edges[:0]
        if nodes is not None and node_columns is not None:
            graph_of_nodes = _graph_of(nodes, node_columns)
        self.graph_ids = np.unique(np.concatenate([graph_of_nodes, graph_of_edges]))
        self._edge_rows = _runs(graph_of_edges, self.graph_ids)
        self._node_rows = _runs(graph_of_nodes, self.graph_ids)

    def graph(self, number: int, *, undirected: bool) -> BaseData:
        """The graph of one id; ValueError where an edge joins a node that is not in the table."""
        rows = self._edge_rows[number]
        source, target = (self._edges[name][rows] for name in self._edge_columns.ids)
        ids, values = self._of_nodes(number)
        if ids is None:
            if (source.dtype.kind in "iu") != (target.dtype.kind in "iu"):
                kinds = " and ".join(self._edge_columns.ids)
                raise ValueError(f"the columns {kinds} have ids of two kinds, numbers and text")
            ids = np.unique(np.concatenate([source, target]))
        edge_index = np.stack([_positions(ids, source), _positions(ids, target)])
        attr = _matrix(self._edges, self._edge_columns.values, rows)
        if undirected:
            edge_index = np.concatenate([edge_index, edge_index[::-1]], axis=1)
            attr = None if attr is None else np.concatenate([attr, attr])
        single = attr is not None and attr.shape[1] == 1
        graph = make_data(
            edge_index=edge_index,
            edge_weight=attr[:, 0] if attr is not None and single else None,
            edge_attr=None if single else attr,
            num_nodes=None if "x" in values else len(ids),
            graph_id=self.graph_ids[number : number + 1].tolist()[0]
            if self._edge_columns.graph
            else None,
            **values,
        )
        # A list of str is an attribute as it is; make_data would take it for numbers.
        texts = ids.dtype.kind not in "iu"
        graph.node_id = ids.tolist() if texts else make_data(x=as_dtype(ids, np.int64, "node_id")).x
        return graph

    def _of_nodes(self, number: int) -> tuple[NDArray[Any] | None, dict[str, NDArray[Any]]]:
        """Ids, features and labels of the nodes of a graph, from the table of nodes."""
        if self._nodes is None or self._node_columns is None:
            return None, {}
        columns, rows = self._node_columns, self._node_rows[number]
        ids = self._nodes[columns.ids[0]][rows]
        if len(np.unique(ids)) != len(ids):
            raise ValueError("the table of nodes has an id twice")
        values: dict[str, NDArray[Any]] = {}
        if (x := _matrix(self._nodes, columns.values, rows)) is not None:
            values["x"] = x
        if columns.labels is not None:
            y = self._nodes[columns.labels][rows]
            values["y"] = as_dtype(y, np.int64 if y.dtype.kind in "iub" else np.float32, "y")
        return ids, values


def _graph_of(table: Mapping[str, NDArray[Any]], columns: TableColumns) -> NDArray[Any]:
    num_rows = len(table[columns.ids[0]])
    return np.zeros(num_rows, np.int64) if columns.graph is None else table[columns.graph]


def _runs(graph: NDArray[Any], graph_ids: NDArray[Any]) -> list[NDArray[np.int64]]:
    """The rows of each graph, in their order."""
    number = np.searchsorted(graph_ids, graph)
    order = np.argsort(number, kind="stable")
    return np.split(order, np.cumsum(np.bincount(number, minlength=len(graph_ids)))[:-1])


def _positions(ids: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """Where each wanted id is among the ids."""
    order = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids[order], wanted)
    found = order[np.minimum(place, max(len(ids) - 1, 0))] if len(ids) else place
    absent = np.ones(len(wanted), bool) if not len(ids) else ids[found] != wanted
    if absent.any():
        raise ValueError(f"an edge joins node {wanted[absent][0]!s}, which is not in the table")
    return np.asarray(found, dtype=np.int64)


def _matrix(
    table: Mapping[str, NDArray[Any]], names: Sequence[str], rows: NDArray[np.int64]
) -> NDArray[np.float32] | None:
    """Float32 [rows, names] of some columns; None where there are none."""
    if not names:
        return None
    return np.stack([as_dtype(table[name][rows], np.float32, name) for name in names], axis=1)
