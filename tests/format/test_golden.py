"""What version 1.0 wrote: today's reader reads every bit, today's writer writes the same bytes."""

import importlib.util
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from graph_equality import assert_same  # tests/ is on pytest's path
from torch_geometric.data import Batch

import shardgraph as sg

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden" / "v1.0"
NAMES = ("compressed", "dtypes", "kinds", "pairs", "typed")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_golden", ROOT / "tools" / "make_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_golden = load()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Torch warns that half complex and CSR tensors are new."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(ComplexHalf|Sparse CS[RC])")
        yield


@pytest.fixture(scope="module")
def anew(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same datasets, written by today's writer."""
    out = tmp_path_factory.mktemp("golden") / "v1.0"
    make_golden.write(out)
    return out


def graphs(name: str) -> list[Any]:
    return list(make_golden.JOBS[name][0]())


def test_all_are_there() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(make_golden.JOBS) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_reads(name: str) -> None:
    dataset = sg.ShardedDataset(GOLDEN / name)
    expected = graphs(name)
    assert len(dataset) == len(expected)
    many = dataset.__getitems__(range(len(dataset)))
    for number, data in enumerate(expected):
        if name == "typed":
            add_empty_types(data)
        assert_same(data, dataset[number], classes=False)
        assert_same(data, many[number], classes=False)


def add_empty_types(data: Any) -> None:
    """A type that a graph lacks is read as an empty one."""
    edges = torch.empty(2, 0, dtype=torch.int64)
    features = torch.empty(0, 1, dtype=torch.float64)
    if "item" not in data.node_types:
        data["item"].num_nodes = 0
        data[make_golden.BUYS].update({"edge_index": edges, "edge_attr": features})
    if make_golden.LIKES not in data.edge_types:
        data[make_golden.LIKES].edge_index = edges


@pytest.mark.parametrize("name", ["compressed", "pairs"])
def test_batches_by_recorded_rules(name: str) -> None:
    dataset = sg.ShardedDataset(GOLDEN / name)
    assert type(dataset[0]).__name__ == "RecordedData"
    expected = Batch.from_data_list(graphs(name))
    (batch,) = sg.GraphLoader(dataset, batch_size=9)
    assert_same(expected, batch, classes=False)
    assert batch.edge_index.tolist() == [[0, 1, 2, 2, 3, 6], [0, 0, 3, 1, 7, 4]]
    assert batch.edge_index_s.tolist() == [[0, 1, 2, 2, 3, 6], [1, 0, 2, 2, 6, 3]]
    assert batch.counted.tolist() == [0, 1, 2, 7, 8, 8, 14, 15, 18]
    assert batch.stacked.shape == (3, 2, 2)
    assert batch.wide.shape == (2, 8)


@pytest.mark.parametrize("name", NAMES)
def test_verifies(name: str) -> None:
    assert sg.verify(GOLDEN / name, level="full") == []


def versions(root: Path) -> Any:
    return sg.Manifest.read(root).provenance["versions"]["h5py"]


@pytest.mark.parametrize("name", NAMES)
def test_written_anew(name: str, anew: Path) -> None:
    """Byte for byte if HDF5 is the same; in every object, attribute and value if it is not."""
    old, new = sg.Manifest.read(GOLDEN / name), sg.Manifest.read(anew / name)
    same_hdf5 = versions(GOLDEN / name) == versions(anew / name)
    for entry in old.shards:
        files = GOLDEN / name / entry.name, anew / name / entry.name
        assert contents(files[0]) == contents(files[1])
        if same_hdf5:
            assert files[0].read_bytes() == files[1].read_bytes()
    assert plain(old, keep_files=same_hdf5) == plain(new, keep_files=same_hdf5)


def plain(manifest: sg.Manifest, *, keep_files: bool) -> sg.Manifest:
    """The manifest without what depends on the versions of what wrote it."""
    if not keep_files:
        shards = tuple(replace(e, nbytes=0, digest="0" * 32) for e in manifest.shards)
        manifest = replace(manifest, shards=shards)
    return replace(manifest, provenance={**manifest.provenance, "versions": {}})


def contents(path: Path) -> dict[str, Any]:
    """Every group and dataset of a shard, with attributes, dtypes, layout and values."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        attributes = {key: (str(v.dtype), v.tolist()) for key, v in item.attrs.items()}
        found[name] = attributes
        if isinstance(item, h5py.Dataset):
            values = item[()]
            stored = (str(item.dtype), item.shape, item.chunks, item.compression)
            found[name] = (attributes, stored, np.ascontiguousarray(values).tobytes())

    with h5py.File(path, "r", locking=False) as file:
        visit("/", file)
        file.visititems(visit)
    return found


def test_equal_contents_are_equal_bytes(anew: Path, tmp_path: Path) -> None:
    make_golden.write(tmp_path / "again")
    files = sorted(path.relative_to(anew) for path in anew.rglob("*.*") if path.is_file())
    assert len(files) == 12
    for file in files:
        assert (anew / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
