"""A shard is plain HDF5: what any reader finds in it."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import shardgraph as sg
from shardgraph.shards.write import ShardBuffer, compression_options


def data(n: int, e: int) -> Data:
    return Data(
        x=torch.arange(2.0 * n).view(n, 2),
        edge_index=torch.arange(2 * e).view(2, e) % n,
        edge_attr=torch.ones(e, 1),
        y=torch.tensor([[n, e]]),
        scalar=torch.tensor(1.5),
        tail=torch.arange(n + e),
        flag=n > 2,
        name="né" * n,
    )


@pytest.fixture
def file(tmp_path):
    with sg.DatasetWriter(tmp_path) as writer:
        for n, e in ((3, 2), (1, 0), (2, 4)):
            writer.write(data(n, e))
    with h5py.File(tmp_path / "shard-00000.h5") as opened:
        yield opened


def test_every_attribute_is_one_array_of_all_graphs(file):
    columns = file["columns"]
    assert sorted(columns) == sorted(data(1, 1).keys())
    assert all(isinstance(column, h5py.Dataset) for column in columns.values())
    assert columns["x"].shape == (6, 2)
    assert columns["edge_index"].shape == (6, 2)
    assert columns["edge_index"][:2].T.tolist() == [[0, 1], [2, 0]]
    assert columns["y"][:].tolist() == [[3, 2], [1, 0], [2, 4]]
    assert columns["scalar"][:].tolist() == [1.5] * 3
    assert columns["flag"][:].tolist() == [1, 0, 0]
    assert bytes(columns["name"][:]).decode() == "né" * 6


def test_columns_that_count_the_same_share_one_ptr(file):
    axes = {name: column.attrs["axis"].decode() for name, column in file["columns"].items()}
    assert axes == {
        "x": "node",
        "edge_index": "edge",
        "edge_attr": "edge",
        "y": "graph",
        "scalar": "graph",
        "flag": "graph",
        "tail": "own/tail",
        "name": "own/name",
    }
    ptr = file["ptr"]
    assert ptr["node"][:].tolist() == [0, 3, 4, 6]
    assert ptr["edge"][:].tolist() == [0, 2, 2, 6]
    assert ptr["own/tail"][:].tolist() == [0, 5, 6, 12]
    assert sorted(ptr) == ["edge", "node", "own"]
    assert ptr["node"].dtype == np.int64


def test_columns_say_what_they_are(file):
    found = {
        name: tuple(column.attrs[key].decode() for key in ("dtype", "row_shape", "cat_dim", "inc"))
        for name, column in file["columns"].items()
    }
    assert found["x"] == ("float32", "[2]", "0", "none")
    assert found["edge_index"] == ("int64", "[2]", "-1", "num_nodes")
    assert found["scalar"] == ("float32", "[]", "None", "none")
    assert found["flag"] == ("bool", "[]", "None", "none")
    assert file.attrs["format"].decode() == "shardgraph"
    assert file.attrs["num_graphs"] == 3


def test_arrays_lie_whole_and_aligned_in_the_file(file):
    raw = Path(file.filename).read_bytes()
    x = file["columns/x"]
    assert x.chunks is None
    assert x.id.get_offset() % 8 == 0
    offset = x.id.get_offset()
    assert raw[offset : offset + x.nbytes] == x[:].tobytes()
    assert raw[8] == 3  # the superblock's version


def test_large_arrays_begin_at_a_page(tmp_path):
    with sg.DatasetWriter(tmp_path) as writer:
        for _ in range(40):
            writer.write(Data(x=torch.rand(50, 3), z=torch.rand(50)))
    with h5py.File(tmp_path / "shard-00000.h5") as file:
        for column in file["columns"].values():
            assert column.id.get_offset() % 4096 == 0


def test_nothing_is_pickled_or_of_variable_length(file):
    def check(name, found):
        if isinstance(found, h5py.Dataset):
            assert found.dtype.kind in "iuf", name
        for value in found.attrs.values():
            assert isinstance(value, (np.bytes_, np.integer)), name

    file.visititems(check)
    check("/", file)


def test_compressed_columns_are_chunked(tmp_path):
    with sg.DatasetWriter(tmp_path, compression="gzip") as writer:
        for _ in range(20):
            writer.write(Data(x=torch.zeros(5000, 2), y=torch.zeros(1, 0), z=torch.zeros(0)))
    with h5py.File(tmp_path / "shard-00000.h5") as file:
        x = file["columns/x"]
        assert x.compression == "gzip"
        assert x.chunks == (8192, 2)
        assert x.id.get_storage_size() < x.nbytes / 20
        assert file["ptr/node"].chunks is None
        assert file["columns/y"].shape == (20, 0)
        assert file["columns/z"].shape == (0,)


def test_unknown_compressions_are_refused():
    with pytest.raises(ValueError, match="compression must be None, 'gzip', 'zstd' or 'lz4', got"):
        compression_options("szip")


def test_names_of_any_kind_have_a_place(tmp_path):
    names = ["a/b", ".", "..", "a__b", "%", "a%2Fb", "ü", "own", "node", "edge", "columns", " "]
    with sg.DatasetWriter(tmp_path) as writer:
        for place in (1, 2):
            one = Data(num_nodes=place)
            for name in names:
                one[name] = torch.full((place + 3,), place)
                one[f"dict {name}"] = {inner: torch.full((2,), place) for inner in names}
            writer.write(one)
    for place, found in enumerate(sg.ShardedDataset(tmp_path), 1):
        assert [key for key in found.to_dict() if key in names] == names
        for name in names:
            assert found[name].tolist() == [place] * (place + 3)
            assert list(found[f"dict {name}"]) == names


def test_types_have_axes_of_their_own(tmp_path):
    one = HeteroData()
    one["a"].x = torch.zeros(2, 1)
    one["b/c"].num_nodes = 3
    one["a", "to", "b/c"].edge_index = torch.zeros(2, 4, dtype=torch.int64)
    one.y = torch.zeros(1)
    with sg.DatasetWriter(tmp_path) as writer:
        writer.write(one)
    with h5py.File(tmp_path / "shard-00000.h5") as file:
        assert file["ptr/node/a"][:].tolist() == [0, 2]
        assert file["ptr/node/b%2Fc"][:].tolist() == [0, 3]
        assert file["ptr/edge/a__to__b%2Fc"][:].tolist() == [0, 4]
        edge_index = file["columns/edge/a__to__b%2Fc/edge_index"]
        assert edge_index.attrs["axis"] == b"edge/a__to__b%2Fc"
        assert edge_index.attrs["inc"] == b"endpoints"
        assert file["columns/graph/y"].attrs["axis"] == b"graph"


def test_a_buffer_is_empty_again_after_it_is_written(tmp_path):
    from shardgraph.collate import GraphEncoder

    encoder, buffer = GraphEncoder(), ShardBuffer()
    for number in range(2):
        for _ in range(3):
            record = encoder.encode(data(2, 1), 0)
            buffer.append(record, encoder.schema.columns, encoder.rules)
        assert buffer.num_graphs == 3
        assert buffer.nbytes > 0
        entry, statistics = buffer.write(tmp_path / f"shard-{number:05d}.h5", encoder.schema)
        assert (entry.num_graphs, entry.num_nodes, entry.num_edges) == (3, 6, 3)
        assert statistics.num_graphs == 3
        assert (buffer.num_graphs, buffer.nbytes) == (0, 0)
    one, two = sorted(tmp_path.iterdir())
    assert one.read_bytes() == two.read_bytes()


def test_rows_longer_than_a_chunk_may_be_are_not_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardgraph.shards.write.MAX_CHUNK", 64)
    with sg.DatasetWriter(tmp_path, compression="gzip") as writer:
        writer.write(Data(x=torch.ones(3, 17), z=torch.ones(3, 16)))
    with h5py.File(tmp_path / "shard-00000.h5", locking=False) as file:
        assert file["columns/x"].chunks is None
        assert file["columns/z"].chunks == (3, 16)
    assert torch.equal(sg.ShardedDataset(tmp_path)[0].x, torch.ones(3, 17))
