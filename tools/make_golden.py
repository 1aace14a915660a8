"""Writes the golden datasets: small, of every kind of attribute, the same bytes every time.

    python tools/make_golden.py OUT

The tests keep what each version of the format wrote (``tests/data/golden/v1.0``), so that no later
reader fails on it and no later writer of that version writes anything else. A new version of the
format gets a new folder; an old one is never written again.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data, HeteroData

import shardgraph as sg

DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("complex32", "complex64", "complex128"),
)
BUYS = ("user", "buys", "item")
LIKES = ("user", "_likes_", "user")


def ramp(*shape: int, start: float = 0.0) -> Tensor:
    """float64 of quarters: sums and squares of them are exact, so statistics are, too."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) / 4 + start).reshape(shape)


def of_dtype(name: str, number: int) -> Tensor:
    """Four values of a dtype; the second graph has its extremes."""
    dtype = getattr(torch, name)
    if dtype is torch.bool:
        return torch.tensor([number == 0, True, False, True])
    if dtype.is_complex:
        halves = {"complex32": torch.float16, "complex64": torch.float32}
        parts = ramp(4, 2, start=number).to(halves.get(name, torch.float64))
        parts[0, 0] = -0.0
        return torch.view_as_complex(parts)
    if dtype.is_floating_point:
        values = ramp(4, start=number).to(dtype)
        if number == 1:
            info = torch.finfo(dtype)
            special = [info.max, info.min, info.tiny, -0.0]
            values = torch.tensor(special, dtype=torch.float64).to(dtype)
        if number == 2:
            values = torch.tensor([float("nan"), float("nan"), 0.5, -2.0]).to(dtype)
        return values
    if number == 1:
        info = torch.iinfo(dtype)
        return torch.tensor([info.min, info.max, 0, 1], dtype=dtype)
    return torch.tensor([0, 1, 2, number], dtype=dtype)


def dtypes() -> Iterator[Data]:
    """A ``Data`` with one attribute of each dtype."""
    for number in range(3):
        data = Data(num_nodes=number)
        for name in DTYPES:
            data[f"of_{name}"] = of_dtype(name, number)
        yield data


def kinds() -> Iterator[Data]:
    """A ``Data`` with an attribute of each kind; the third graph is empty, the last has no edge."""
    for number, (n, e) in enumerate(((2, 3), (5, 1), (0, 0), (1, 0))):
        edges = (torch.arange(2 * e).reshape(2, e) * 7) % max(n, 1)
        coo = torch.sparse_coo_tensor(
            edges, ramp(e), (n, n), is_coalesced=number == 1, check_invariants=True
        )
        csr = torch.sparse_csr_tensor(
            torch.arange(n + 1), torch.arange(n), ramp(n).float(), (n, 2 * n), check_invariants=True
        )
        csc = torch.sparse_csc_tensor(
            torch.arange(n + 1), torch.arange(n), ramp(n).float(), (2 * n, n), check_invariants=True
        )
        yield Data(
            x=ramp(n, 2).float(),
            edge_index=edges,
            edge_attr=edges.T * 300 - 5,
            y=torch.tensor(number / 2),
            label=number % 3,
            score=number / 4,
            good=number == 1,
            name=("", "zwei µ", "x" * 20, "\u2028")[number],
            notes=[[], [{"a": [1, 2.5, None]}, "b"], [True], [[]]][number],
            nested={"a": ramp(n, 1), "b/c": [ramp(2), (torch.tensor(number), "deep")], "": {}},
            face=(torch.arange(3 * e).reshape(3, e) * 5) % max(n, 1),
            wide_index=EdgeIndex(edges, sparse_size=(n, None), is_undirected=False),
            order=Index(torch.arange(n), dim_size=n, is_sorted=True),
            coo=coo,
            csr=csr,
            csc=csc,
            varying=ramp(*((2, 3), (1,), (0, 5), ())[number]),
            rows=ramp(number, 2),
            none=torch.empty(n, 0),
        )


class Pair(Data):
    """Two graphs in one, with rules of its own, which a reader has without this class."""

    __module__ = "golden"

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """The nodes of the side that an index belongs to."""
        if key == "edge_index_s":
            return self.x_s.size(0)
        if key == "edge_index":
            return torch.tensor([[self.x_s.size(0)], [self.x_t.size(0)]])
        if key == "counted":
            return 7
        return super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """A new dimension, or the last one."""
        if key == "stacked":
            return None
        if key == "wide":
            return 1
        return super().__cat_dim__(key, value, *args, **kwargs)


def pairs() -> Iterator[Pair]:
    """Graphs of a class with rules of its own."""
    for s, t in ((2, 1), (1, 3), (4, 4)):
        yield Pair(
            x_s=ramp(s, 2).float(),
            x_t=ramp(t, 1).float(),
            edge_index_s=torch.tensor([[0, s - 1], [s - 1, 0]]),
            edge_index=torch.tensor([[0, s - 1], [t - 1, 0]]),
            counted=torch.tensor([0, 1, s]),
            stacked=ramp(2, 2, start=s),
            wide=ramp(2, t),
            num_nodes=s + t,
        )


def typed() -> Iterator[HeteroData]:
    """Graphs that lack types; the last shard has types that the first has not."""
    for number in range(5):
        data = HeteroData()
        data.seed = number
        data["user"].x = ramp(number, 2).float()
        data["user"].y = torch.arange(number, dtype=torch.int32)
        if number >= 3:
            data["item"].num_nodes = number
            data[BUYS].edge_index = torch.tensor([[0, 1], [1, 0]])
            data[BUYS].edge_attr = ramp(2, 1)
        if number == 4:
            data[LIKES].edge_index = torch.tensor([[3], [0]])
        yield data


JOBS: dict[str, tuple[Callable[[], Iterator[Any]], dict[str, Any]]] = {
    "dtypes": (dtypes, {}),
    "kinds": (kinds, {"varying": ["varying"]}),
    "pairs": (pairs, {}),
    "compressed": (pairs, {"compression": "gzip"}),
    "typed": (typed, {"shard_size": 60}),
}


def write(out: Path) -> None:
    """Writes every golden dataset into a folder of its own below ``out``."""
    for name, (graphs, options) in JOBS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch: half complex and CSR tensors are new
            provenance = {"source": "tools/make_golden.py"}
            with sg.DatasetWriter(out / name, provenance=provenance, **options) as writer:
                for data in graphs():
                    writer.write(data)
        (out / name / ".lock").unlink(missing_ok=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder that does not exist yet")
    out = parser.parse_args().out
    if out.exists():
        parser.error(f"{out} exists; a golden dataset is not written twice")
    write(out)
    for path in sorted(out.rglob("*.*")):
        if path.is_file():
            print(f"{path.stat().st_size:8,}  {path}")


if __name__ == "__main__":
    main()
