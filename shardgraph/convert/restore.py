"""Builds the objects of PyG from the records that `unpickle` keeps in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardgraph.convert.unpickle import Record
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData


def is_graph(value: Any) -> bool:
    """Whether a value is a graph of PyG, or the record of one."""
    from torch_geometric.data.data import BaseData

    return isinstance(value, BaseData) or (
        isinstance(value, Record) and value.kind in ("Data", "HeteroData")
    )


def describe(value: Any) -> str:
    """What a value is, for an error."""
    if isinstance(value, Record):
        return value.kind
    if isinstance(value, list | tuple) and value:
        return f"a {type(value).__name__} that starts with {describe(value[0])}"
    return f"a {type(value).__name__}"


def restore_graph(value: Any, where: str) -> BaseData:
    """A PyG object of this version from a record, or from an object of another version.

    Raises:
        FormatError: the value is no graph, or a record without what a graph has.
    """
    if not is_graph(value):
        raise FormatError(f"{where} holds {describe(value)} where a graph was expected")
    with _format_errors(where):
        return _restore(value, where)


def restore_dict(mapping: Mapping[Any, Any], told: Sequence[Any], where: str) -> BaseData:
    """A graph from its ``to_dict`` and what is saved beside it, one of which is its class.

    Raises:
        FormatError: the mapping is not that of a graph.
    """
    from torch_geometric.data.data import BaseData

    kinds: list[Any] = [kind for kind in told if isinstance(kind, type)]
    with _format_errors(where):
        for kind in kinds:
            if issubclass(kind, BaseData):
                graph: BaseData = kind.from_dict(mapping)
                return graph
        hetero = any(getattr(kind, "kind", None) == "HeteroData" for kind in kinds)
        return _from_dict(mapping, hetero, where)


@contextmanager
def _format_errors(where: str) -> Iterator[None]:
    """Turns what a value of another shape than a graph's leads to into a FormatError."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{where}: not a graph: {type(error).__name__}: {error}") from error


def _restore(value: Any, where: str) -> BaseData:
    from torch_geometric.data.data import BaseData

    if isinstance(value, BaseData):
        stale = "_store" not in vars(value) and "_global_store" not in vars(value)
        return _from_dict(_attributes(vars(value)), False, where) if stale else value
    state = value.state
    if value.kind == "Data":
        store = state.get("_store")
        mapping = _attributes(state) if store is None else _store(store)
        return _from_dict(mapping, False, where)
    stores = {"_global_store": _store(state["_global_store"])}
    for kind in ("_node_store_dict", "_edge_store_dict"):
        stores.update({key: _store(store) for key, store in state[kind].items()})
    return _from_dict(stores, True, where)


def _store(record: Any) -> dict[str, Any]:
    """The attributes of a storage of PyG 2."""
    mapping = dict(record.state["_mapping"])
    if "_num_nodes" in record.state:
        mapping["_num_nodes"] = record.state["_num_nodes"]
    return mapping


def _attributes(state: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a `Data` of PyG 1, which were its own: those that are not None."""
    found = {k: v for k, v in state.items() if v is not None and not k.startswith("__")}
    num_nodes = state.get("__num_nodes__")
    if num_nodes is not None:
        # A list holds the numbers of nodes of collated graphs.
        found["_num_nodes" if isinstance(num_nodes, list) else "num_nodes"] = num_nodes
    return found


def _from_dict(mapping: Mapping[Any, Any], hetero: bool, where: str) -> BaseData:
    """A `Data` or `HeteroData` of what its ``to_dict`` gives."""
    from torch_geometric.data import Data, HeteroData

    stores = mapping.values() if hetero else [mapping]
    for name in (name for store in stores for name in store):
        if not isinstance(name, str) or name.startswith("__"):
            raise FormatError(f"{where}: {name!r} is not a name of an attribute")
    plain = {key: restore_value(value) for key, value in mapping.items()}
    graph: BaseData = (HeteroData if hetero else Data).from_dict(plain)
    return graph


def restore_value(value: Any) -> Any:
    """The value with its records turned into the objects of PyG and SciPy they stand for."""
    if isinstance(value, Record):
        return _RECORDS[value.kind](value.state)
    if isinstance(value, dict):
        return {key: restore_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(restore_value(item) for item in value)
    return value


def _edge_index(state: Mapping[str, Any]) -> Any:
    from torch_geometric import EdgeIndex

    return EdgeIndex(
        state["_data"],
        sparse_size=state["_sparse_size"],
        sort_order=state["_sort_order"],
        is_undirected=state["_is_undirected"],
    )


def _index(state: Mapping[str, Any]) -> Any:
    from torch_geometric import Index

    return Index(state["_data"], dim_size=state["_dim_size"], is_sorted=state["_is_sorted"])


_RECORDS = {"EdgeIndex": _edge_index, "Index": _index}
