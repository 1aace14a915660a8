import importlib
import pickle
import sys

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from shardgraph.convert import find_source
from shardgraph.errors import FormatError

CONTAINERS = [{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}]
container = pytest.mark.parametrize("saved", CONTAINERS, ids=["zip", "legacy", "protocol4"])


class Subclass(Data):
    pass


def graph(i):
    return Data(
        x=torch.arange(2.0 * i).view(i, 2),
        edge_index=torch.tensor([[0] * i, list(range(i))]),
        y=torch.tensor([i]),
        name=f"g{i}",
    )


def hetero():
    data = HeteroData(y=torch.tensor([1.5]))
    data["a"].x = torch.ones(2, 1)
    data["b"].num_nodes = 4
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [1, 3]])
    return data


@container
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_one_graph_of_every_kind_of_value(tmp_path, read_all, saved):
    values = {
        "view": torch.arange(10)[3:7],
        "transposed": torch.arange(6).view(2, 3).t(),
        "empty": torch.empty(0, 3, dtype=torch.int16),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "bool": torch.tensor([True, False]),
        "bfloat16": torch.tensor([1.5], dtype=torch.bfloat16),
        "uint16": torch.tensor([65535], dtype=torch.uint16),
        "conj": torch.tensor([1 + 2j]).conj(),
        "array": np.arange(6.0).reshape(2, 3),
        "numbers": (1, 2.5, True, None, np.float64(3)),
        "nested": {"a": [torch.ones(1), "text", b"bytes"], "b": {1, 2}},
        "torch_size": torch.Size([2, 3]),
        "dtype": torch.float32,
    }
    data = Data(num_nodes=7, **values)
    data.sparse_coo = torch.eye(3).to_sparse()
    data.sparse_csr = torch.eye(3).to_sparse_csr()
    data.edge_index = EdgeIndex([[0, 1], [1, 2]], sparse_size=(7, 7), sort_order="row")
    data.index = Index([0, 1], dim_size=3)
    torch.save(data, tmp_path / "a.pt", **saved)
    (read,), rejects = read_all(tmp_path / "a.pt")
    assert rejects == []
    assert set(read.keys()) == set(data.keys())
    for key in ("view", "transposed", "empty", "scalar", "bool", "bfloat16", "uint16", "conj"):
        assert read[key].dtype == values[key].dtype
        assert torch.equal(read[key], values[key].resolve_conj()), key
    np.testing.assert_array_equal(read.array, values["array"])
    assert (read.numbers, read.torch_size, read.dtype) == (
        values["numbers"],
        values["torch_size"],
        values["dtype"],
    )
    assert torch.equal(read.nested["a"][0], torch.ones(1))
    assert (read.nested["a"][1:], read.nested["b"]) == (["text", b"bytes"], {1, 2})
    assert torch.equal(read.sparse_coo.to_dense(), torch.eye(3))
    assert torch.equal(read.sparse_csr.to_dense(), torch.eye(3))
    assert read.sparse_csr.layout == torch.sparse_csr
    assert isinstance(read.edge_index, EdgeIndex)
    assert (read.edge_index.sparse_size(), read.edge_index.is_sorted_by_row) == ((7, 7), True)
    assert read.edge_index.as_tensor().tolist() == [[0, 1], [1, 2]]
    assert isinstance(read.index, Index)
    assert (read.index.dim_size, read.index.as_tensor().tolist()) == (3, [0, 1])
    assert read.num_nodes == 7


@container
def test_list_of_graphs(tmp_path, read_all, assert_same, saved):
    expected = [graph(1), hetero(), graph(3)]
    torch.save(expected, tmp_path / "a.pt", **saved)
    graphs, rejects = read_all(tmp_path / "a.pt", size=2)
    assert rejects == []
    for read, wanted in zip(graphs, expected, strict=True):
        assert_same(read, wanted)


@container
@pytest.mark.parametrize("kind", ["Data", "HeteroData", "no x"])
def test_collated_graphs(tmp_path, read_all, assert_same, saved, kind):
    expected = {
        "Data": [graph(i) for i in (1, 2, 3)],
        "HeteroData": [hetero(), hetero()],
        "no x": [Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2 + i) for i in range(3)],
    }[kind]
    data, slices = InMemoryDataset.collate(expected)
    for value in ((data, slices), (data.to_dict(), slices, type(data)), (data, slices, {"n": 1})):
        torch.save(value, tmp_path / "a.pt", **saved)
        graphs, rejects = read_all(tmp_path / "a.pt", size=2)
        assert rejects == []
        for read, wanted in zip(graphs, expected, strict=True):
            assert_same(read, wanted)


def test_collated_single_graph(tmp_path, read_all, assert_same):
    InMemoryDataset.save([graph(3)], tmp_path / "a.pt")
    (read,), _ = read_all(tmp_path / "a.pt")
    assert_same(read, graph(3))


def test_folder_in_order_of_numbers(tmp_path, read_all, assert_same):
    for i in range(1, 12):
        torch.save(graph(i), tmp_path / f"data_{i}.pt")
    torch.save([graph(12), graph(13)], tmp_path / "data_12.pt")
    (tmp_path / "data_5.pt").write_bytes((tmp_path / "data_5.pt").read_bytes()[:300])
    torch.save("repr", tmp_path / "pre_transform.pt")
    graphs, rejects = read_all(tmp_path)
    for read, i in zip(graphs, [1, 2, 3, 4, *range(6, 14)], strict=True):
        assert_same(read, graph(i))
    assert [reject.file for reject in rejects] == [str(tmp_path / "data_5.pt")]
    assert "data_5.pt is damaged: BadZipFile" in rejects[0].reason


class Kept(InMemoryDataset):
    def process(self):
        self.save([graph(i) for i in range(1, 4)], self.processed_paths[0])

    processed_file_names = "data.pt"


def test_root_of_an_in_memory_dataset(tmp_path, read_all, assert_same):
    Kept(str(tmp_path / "kept"), log=False)
    assert (tmp_path / "kept/processed/pre_filter.pt").exists()
    for folder in ("kept", "kept/processed"):
        source = find_source(tmp_path / folder)
        assert source.name == "pyg"
        assert [p.num_records for p in source.partitions()] == [3]
        assert [entry["name"] for entry in source.provenance()["files"]] == ["data.pt"]
        graphs, rejects = read_all(tmp_path / folder, size=2)
        assert rejects == []
        for read, i in zip(graphs, (1, 2, 3), strict=True):
            assert_same(read, graph(i))


def test_notes_of_pyg_are_no_data(tmp_path):
    for name in ("pre_transform.pt", "pre_filter.pt"):
        torch.save("repr", tmp_path / name)
    with pytest.raises(ValueError, match="cannot tell the format"):
        find_source(tmp_path)


def test_raw_files_of_a_root_come_first(tmp_path):
    Kept(str(tmp_path), log=False)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/T_A.txt").write_text("1, 2\n2, 1\n")
    (tmp_path / "raw/T_graph_indicator.txt").write_text("1\n1\n")
    assert find_source(tmp_path).name == "tudataset"
    assert find_source(tmp_path, format="pyg").spec == str(tmp_path / "processed/data.pt")


def test_items_that_are_not_graphs_are_rejected(tmp_path, read_all):
    torch.save([graph(1), None, "text"], tmp_path / "a.pt")
    graphs, rejects = read_all(tmp_path / "a.pt")
    assert len(graphs) == 1
    where = f"not a graph: FormatError: {tmp_path / 'a.pt'} holds"
    assert [(reject.record, reject.reason) for reject in rejects] == [
        ("graph 1", f"{where} a NoneType where a graph was expected"),
        ("graph 2", f"{where} a str where a graph was expected"),
    ]


def test_other_contents_are_named(tmp_path, read_all):
    torch.save([torch.ones(1)], tmp_path / "a.pt")
    with pytest.raises(FormatError, match="holds a list that starts with a Tensor; expected a Da"):
        read_all(tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(b"not a pickle")
    with pytest.raises(FormatError, match=r"b.pt was not written by torch.save"):
        read_all(tmp_path / "b.pt")
    (tmp_path / "c.pt").write_bytes(pickle.dumps([1]))
    with pytest.raises(FormatError, match=r"c.pt was not written by torch.save"):
        read_all(tmp_path / "c.pt")


def test_subclass_needs_trust(tmp_path, read_all):
    torch.save([Subclass(x=torch.ones(1))], tmp_path / "a.pt")
    with pytest.raises(
        FormatError, match=r"Subclass, which is not one of .*pass trust_pickle=True \(--trust-pick"
    ):
        read_all(tmp_path / "a.pt")
    (read,), _ = read_all(tmp_path / "a.pt", trust_pickle=True)
    assert type(read) is Subclass


def test_a_module_that_is_not_found_is_told_how_to_be(tmp_path, read_all, monkeypatch):
    text = "from torch_geometric.data import Data\nclass Mine(Data):\n    pass\n"
    (tmp_path / "own_graphs.py").write_text(text)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        own = importlib.import_module("own_graphs")
    torch.save(own.Mine(y=1), tmp_path / "a.pt")
    monkeypatch.delitem(sys.modules, "own_graphs")
    advice = (
        r"run `python -m shardgraph` in the folder that holds own_graphs, or .*PYTHONPATH=FOLDER"
    )
    with pytest.raises(FormatError, match=rf"a.pt cannot be loaded: .* 'own_graphs'\. .*{advice}"):
        read_all(tmp_path / "a.pt", trust_pickle=True)
    monkeypatch.setitem(sys.modules, "own_graphs", own)
    (read,), _ = read_all(tmp_path / "a.pt", trust_pickle=True)
    assert (type(read), read.y) == (own.Mine, 1)


@pytest.mark.parametrize("kind", [Subclass, HeteroData])
def test_trusted_collated_graphs_keep_their_class(tmp_path, read_all, assert_same, kind):
    expected = [Subclass(x=torch.ones(i, 1)) for i in (1, 2)]
    if kind is HeteroData:
        expected = [hetero(), hetero()]
    InMemoryDataset.save(expected, tmp_path / "a.pt")
    graphs, _ = read_all(tmp_path / "a.pt", trust_pickle=True)
    for read, wanted in zip(graphs, expected, strict=True):
        assert_same(read, wanted)


@pytest.mark.parametrize(
    "value",
    [
        ({"a": 1, "__class__": 2}, {"a": torch.tensor([0, 1])}),
        ({"a": 1}, {"a": torch.tensor([0, 1])}, HeteroData),
        ({("a", "b"): {}}, {"a": torch.tensor([0, 1])}, Data),
    ],
    ids=["name", "store", "key"],
)
def test_dicts_that_are_no_graphs(tmp_path, read_all, value):
    torch.save(value, tmp_path / "a.pt")
    with pytest.raises(FormatError, match=r"a.pt"):
        read_all(tmp_path / "a.pt")


def test_trusted_old_object_is_brought_up_to_date(case, read_all, assert_same):
    path = case("pyg_old/MUTAG_pyg2019/data.pt")
    graphs, _ = read_all(path)
    trusted, _ = read_all(path, trust_pickle=True)
    for read, wanted in zip(trusted, graphs, strict=True):
        assert_same(read, wanted)


def test_mutag_of_2019_is_the_dataset(case, read_all):
    graphs, rejects = read_all(case("pyg_old/MUTAG_pyg2019/data.pt"), size=50)
    raw, _ = read_all(case("tudataset/MUTAG"))
    assert rejects == []
    assert len(graphs) == 188
    for read, wanted in zip(graphs, raw, strict=True):
        assert read.num_nodes == wanted.num_nodes
        for key in ("x", "edge_index", "edge_attr", "y"):
            assert torch.equal(read[key], wanted[key]), key


@container
def test_cut_file_is_an_error(tmp_path, read_all, saved):
    torch.save([graph(i) for i in range(1, 9)], tmp_path / "whole.pt", **saved)
    content = (tmp_path / "whole.pt").read_bytes()
    for size in range(0, len(content), len(content) // 23):
        (tmp_path / "cut.pt").write_bytes(content[:size])
        with pytest.raises(FormatError, match=r"cut.pt"):
            read_all(tmp_path / "cut.pt")


def test_provenance_says_whether_pickles_were_trusted(tmp_path):
    torch.save(graph(1), tmp_path / "a.pt")
    told = find_source(tmp_path / "a.pt", trust_pickle=True).provenance()
    assert told["options"] == {"trust_pickle": True}
    assert told["files"][0]["name"] == "a.pt"
