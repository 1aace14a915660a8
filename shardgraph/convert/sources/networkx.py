"""Graph files that NetworkX reads: GML, GEXF, GraphML, node-link JSON, graph6 and sparse6."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert import table as tables
from shardgraph.convert.build import as_dtype, make_data
from shardgraph.convert.files import FileSource, suffix_of
from shardgraph.convert.source import Confidence, Option, Partition, Reject
from shardgraph.errors import ConversionError, FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

# Graphs looked at to tell attributes of numbers and the kind of ids.
_SNIFFED_GRAPHS = 1000

Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """A graph as a file tells it."""

    nodes: list[tuple[Any, Attributes]]
    edges: list[tuple[Any, Any, Attributes]]
    directed: bool
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What becomes of the attributes of all graphs."""

    node: tuple[str, ...]
    edge: tuple[str, ...]
    vocabularies: dict[str, list[str]]
    """Per attribute of categories, named node.NAME or edge.NAME: the category of each number."""
    ids: str
    """"none" (0, 1, ... in order), "integers" or "text"."""

    def columns(self, of: str) -> tuple[list[str], list[str]]:
        """The attributes of numbers and those of categories, of "node" or "edge"."""
        names = self.node if of == "node" else self.edge
        categories = [name for name in names if f"{of}.{name}" in self.vocabularies]
        return [name for name in names if name not in categories], categories


class NetworkxSource(FileSource):
    """Reads one graph a file, or many from .g6, .s6, .jsonl and a JSON list.

    An undirected edge becomes two, parallel edges stay. Attributes of numbers of the nodes become
    ``x`` float32 [N, K]; those of the edges ``edge_weight`` float32 [E] where there is one, else
    ``edge_attr`` float32 [E, K]; a missing one is NaN. An attribute of text that is asked for
    becomes its number in a vocabulary over all files, int64 under its own name (of an edge:
    ``edge_NAME``), -1 where missing; `provenance` keeps the vocabulary. ``node_id`` int64 [N] or
    a list of str keeps the ids, unless all are 0, 1, 2, ...

    Args:
        spec: The file, or a folder of such files.
        node_attributes: Attributes to take; None takes all of numbers.
        edge_attributes: Likewise.
        targets: Attributes of the graph that become ``y`` float32 [1, T].
    """

    name = "networkx"
    description = "GML, GEXF, GraphML, node-link JSON (.json, .jsonl), graph6, sparse6; .gz too"
    suffixes = frozenset(
        {
            ".gml",
            ".gexf",
            ".graphml",
            ".json",
            ".jsonl",
            ".g6",
            ".graph6",
            ".s6",
            ".sparse6",
            ".dat",
        }
    )
    options = (
        Option(name="node_attributes", type=str, many=True, help="attributes (all of numbers)"),
        Option(name="edge_attributes", type=str, many=True, help="attributes (all of numbers)"),
        Option(name="targets", type=str, many=True, help="attributes of the graph that become y"),
    )

    def __init__(
        self,
        spec: str,
        *,
        node_attributes: Sequence[str] | None = None,
        edge_attributes: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
    ) -> None:
        super().__init__(spec)
        self._node = node_attributes if node_attributes is None else tuple(node_attributes)
        self._edge = edge_attributes if edge_attributes is None else tuple(edge_attributes)
        self._targets = tuple(targets or ())

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of the suffixes; .json, .jsonl and .dat may be something else."""
        if super().recognise(spec) is None:
            return None
        own = cls.suffixes - {".json", ".jsonl", ".dat"}
        path = Path(spec)
        names = [path / name for name in cls.names(path)] if path.is_dir() else [path]
        vague = not any(suffix_of(name) in own for name in names)
        return Confidence.POSSIBLE if vague else Confidence.CERTAIN

    def partitions(self) -> Sequence[Partition]:
        """The file, or runs of 1,000 files."""
        self._plan  # noqa: B018 (made once, and pickled with the source)
        return super().partitions()

    def read_file(self, path: Path) -> Iterator[BaseData | Reject]:
        """Yields the graphs of one file."""
        for number, graph in enumerate(_read(path)):
            if isinstance(graph, str):
                yield Reject(file=str(path), record=f"graph {number}", reason=graph)
                continue
            try:
                yield self._build(graph)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"
                yield Reject(file=str(path), record=f"graph {number}", reason=reason)

    def provenance(self) -> dict[str, Any]:
        """The attributes taken, and the vocabularies of their categories."""
        plan = self._plan
        return super().provenance() | {
            "targets": list(self._targets),
            "options": {
                "node_attributes": list(plan.node),
                "edge_attributes": list(plan.edge),
            },
            "vocabularies": plan.vocabularies,
        }

    @cached_property
    def _plan(self) -> _Plan:
        """Made from the first 1,000 graphs, or from all where attributes of text are asked for."""
        graphs = list(itertools.islice(self._all(), _SNIFFED_GRAPHS))
        found = {
            "node": _values(attributes for graph in graphs for _, attributes in graph.nodes),
            "edge": _values(attributes for graph in graphs for *_, attributes in graph.edges),
        }
        ids = [[node for node, _ in graph.nodes] for graph in graphs]
        numeric = {
            of: [n for n, v in values.items() if _numeric(v)] for of, values in found.items()
        }
        node = tuple(numeric["node"]) if self._node is None else self._node
        edge = tuple(numeric["edge"]) if self._edge is None else self._edge
        for of, asked in (("node", node), ("edge", edge)):
            if absent := sorted(set(asked) - set(found[of])):
                raise ValueError(
                    f"{self.spec}: no {of} has the attribute {', '.join(absent)}; they have "
                    f"{', '.join(found[of]) or 'none'}"
                )
        texts = {"node": set(node) - set(numeric["node"]), "edge": set(edge) - set(numeric["edge"])}
        return _Plan(
            node=node,
            edge=edge,
            vocabularies=self._vocabularies(texts) if any(texts.values()) else {},
            ids=_kind_of_ids(ids),
        )

    def _all(self) -> Iterator[_Graph]:
        """All graphs that can be read."""
        for path in self.files():
            try:
                yield from (graph for graph in _read(path) if not isinstance(graph, str))
            except (FormatError, ConversionError):
                continue  # `read` tells of it in its turn

    def _vocabularies(self, texts: Mapping[str, set[str]]) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {
            f"{of}.{n}": set() for of, names in texts.items() for n in names
        }
        for graph in self._all():
            for of, items in (("node", graph.nodes), ("edge", graph.edges)):
                for name, (*_, attributes) in itertools.product(texts[of], items):
                    if name in attributes:
                        found[f"{of}.{name}"].add(str(attributes[name]))
        return {name: sorted(values) for name, values in sorted(found.items())}

    def _build(self, graph: _Graph) -> BaseData:
        plan = self._plan
        ids = [node for node, _ in graph.nodes]
        number = {node: i for i, node in enumerate(ids)}
        if len(number) < len(ids):
            raise ValueError(f"node {Counter(ids).most_common(1)[0][0]!r} is there twice")
        edges, attributes = [], []
        for source, target, told in graph.edges:
            if source not in number or target not in number:
                raise ValueError(f"an edge joins {source!r} and {target!r}: one is no node")
            edges.append((number[source], number[target]))
            attributes.append(told)
            if not graph.directed and source != target:
                edges.append((number[target], number[source]))
                attributes.append(told)
        x, nodes = self._columns("node", [told for _, told in graph.nodes])
        edge_attr, links = self._columns("edge", attributes)
        single = edge_attr is not None and edge_attr.shape[1] == 1
        data = make_data(
            x=x,
            edge_index=edges,
            edge_weight=edge_attr[:, 0] if edge_attr is not None and single else None,
            edge_attr=None if single else edge_attr,
            num_nodes=None if x is not None else len(ids),
            **nodes,
            **{f"edge_{name}": value for name, value in links.items()},
            y=_floats([graph.attributes], self._targets) if self._targets else None,
        )
        if plan.ids == "integers":
            data.node_id = make_data(x=np.array(ids, dtype=np.int64)).x
        elif plan.ids == "text":
            data.node_id = [str(node) for node in ids]
        return data

    def _columns(
        self, of: str, rows: Sequence[Attributes]
    ) -> tuple[NDArray[np.float32] | None, dict[str, NDArray[np.int64]]]:
        """Of nodes or edges: the matrix of numbers, and the numbers of each attribute of text."""
        numbers, categories = self._plan.columns(of)
        found = {}
        for name in categories:
            known = {text: i for i, text in enumerate(self._plan.vocabularies[f"{of}.{name}"])}
            values = [known[str(row[name])] if name in row else -1 for row in rows]
            found[name] = np.array(values, dtype=np.int64)
        return _floats(rows, numbers) if numbers else None, found


def _floats(rows: Sequence[Attributes], names: Sequence[str]) -> NDArray[np.float32]:
    """Float32 [rows, names], NaN where a row lacks an attribute."""
    values = [[float(row.get(name, np.nan)) for name in names] for row in rows]
    return as_dtype(values, np.float32, " or ".join(names)).reshape(len(rows), len(names))


def _values(rows: Iterable[Attributes]) -> dict[str, list[Any]]:
    """The values of each attribute, in the order in which attributes come."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _kind_of_ids(ids: Sequence[Sequence[Any]]) -> str:
    if all(list(nodes) == list(range(len(nodes))) for nodes in ids):
        return "none"
    integers = all(type(node) is int and -(1 << 63) <= node < 1 << 63 for n in ids for node in n)
    return "integers" if integers else "text"


def _read(path: Path) -> Iterator[_Graph | str]:
    """The graphs of a file; a sentence stands for one that cannot be read.

    Raises:
        FormatError: the file cannot be read at all.
    """
    suffix = suffix_of(path)
    with tables.open_binary(path) as stream:
        if suffix in _BY_LINE:
            for line in stream:
                if line.strip():
                    yield _guarded(_BY_LINE[suffix], line)
        elif suffix == ".dat":
            yield from _read_atlas(path, stream)
        elif suffix == ".json":
            try:
                value = json.load(stream)
            except (ValueError, RecursionError) as error:
                raise FormatError(f"{path} is not JSON: {error}") from error
            for item in value if isinstance(value, list) else [value]:
                yield _guarded(_node_link, item)
        else:
            yield _guarded(_WHOLE[suffix], stream)


def _guarded(parse: Callable[[Any], _Graph], value: Any) -> _Graph | str:
    import networkx as nx  # type: ignore[import-untyped]

    try:
        return parse(value)
    except (nx.NetworkXException, ArithmeticError, LookupError, RecursionError, SyntaxError,
            TypeError, ValueError) as error:  # fmt: skip
        return f"{type(error).__name__}: {error}"


def _from_networkx(graph: Any) -> _Graph:
    return _Graph(
        nodes=list(graph.nodes(data=True)),
        edges=list(graph.edges(data=True)),
        directed=graph.is_directed(),
        attributes=graph.graph,
    )


def _gml(stream: Any) -> _Graph:
    import networkx as nx

    return _from_networkx(nx.read_gml(stream, label="id"))


def _gexf(stream: Any) -> _Graph:
    import networkx as nx

    return _from_networkx(nx.read_gexf(stream))


def _graphml(stream: Any) -> _Graph:
    import networkx as nx

    return _from_networkx(nx.read_graphml(stream))


def _graph6(line: bytes) -> _Graph:
    import networkx as nx

    return _from_networkx(nx.from_graph6_bytes(line.strip()))


def _sparse6(line: bytes) -> _Graph:
    import networkx as nx

    return _from_networkx(nx.from_sparse6_bytes(line.strip()))


def _node_link(value: Any) -> _Graph:
    """The JSON of ``networkx.node_link_data``, with its edges under "links" or "edges".

    An attribute that is null counts as missing.
    """
    if not isinstance(value, dict) or not isinstance(value.get("nodes"), list):
        raise TypeError("not node-link JSON: an object with the lists nodes and links")
    links = value["links"] if "links" in value else value["edges"]
    own = ("source", "target", "key", "id")
    return _Graph(
        nodes=[(node["id"], _known(node, ("id",))) for node in value["nodes"]],
        edges=[(edge["source"], edge["target"], _known(edge, own)) for edge in links],
        directed=bool(value.get("directed", False)),
        attributes=_known(dict(value.get("graph", {})), ()),
    )


def _known(item: Attributes, own: Sequence[str]) -> Attributes:
    return {name: v for name, v in item.items() if name not in own and v is not None}


def _json_line(line: bytes) -> _Graph:
    return _node_link(json.loads(line))


def _read_atlas(path: Path, stream: Iterable[bytes]) -> Iterator[_Graph]:
    """The text of NetworkX's atlas.dat: GRAPH number, NODES count, then an edge a line."""
    num_nodes: int | None = None
    edges: list[tuple[Any, Any, Attributes]] = []
    for number, line in enumerate(stream, start=1):
        first, second = (*line.split(), b"", b"")[:2]
        if first == b"GRAPH":
            if num_nodes is not None:
                yield _of_edges(num_nodes, edges)
            num_nodes, edges = None, []
        elif first == b"NODES" and second.isdigit():
            num_nodes = int(second)
        elif first.isdigit() and second.isdigit() and num_nodes is not None:
            edges.append((int(first), int(second), {}))
        else:
            raise FormatError(f"{path}, line {number}: {line!r} is neither GRAPH, NODES nor edge")
    if num_nodes is not None:
        yield _of_edges(num_nodes, edges)


def _of_edges(num_nodes: int, edges: list[tuple[Any, Any, Attributes]]) -> _Graph:
    nodes: list[tuple[Any, Attributes]] = [(node, {}) for node in range(num_nodes)]
    return _Graph(nodes=nodes, edges=edges, directed=False, attributes={})


_WHOLE = {".gml": _gml, ".gexf": _gexf, ".graphml": _graphml}
_BY_LINE = {
    ".jsonl": _json_line,
    ".g6": _graph6,
    ".graph6": _graph6,
    ".s6": _sparse6,
    ".sparse6": _sparse6,
}
