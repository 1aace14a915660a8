import gzip

import numpy as np
import pytest
import torch

from shardgraph.convert import find_source
from shardgraph.errors import FormatError

RAW = {
    "edge": "0,1\n1,2\n0,1\n",
    "num-node-list": "3\n1\n2\n",
    "num-edge-list": "2\n0\n1\n",
    "node-feat": "1,2\n3,4\n5,6\n7,8\n9,10\n11,12\n",
    "edge-feat": "0.5\n1\n1.5\n",
    "graph-label": "1,nan\n0,2\nnan,1\n",
    "node_species": "7\n6\n5\n4\n3\n2\n",
}
SPLIT = {"train": "2\n0\n", "valid": "", "test": "1\n"}


@pytest.fixture
def ogb(tmp_path):
    def write(name="ogbg_toy", split="random", **changes):
        for folder, files in (("raw", RAW | changes), (f"split/{split}", SPLIT)):
            (tmp_path / name / folder).mkdir(parents=True, exist_ok=True)
            for file, text in files.items():
                path = tmp_path / name / folder / f"{file}.csv.gz"
                path.unlink(missing_ok=True)
                if text is not None:
                    path.write_bytes(gzip.compress(text.encode()))
        return tmp_path / name

    return write


def rows(path):
    with gzip.open(path, "rt") as file:
        return [[float(value) for value in line.split(",")] for line in file]


@pytest.mark.parametrize("size", [1, 2, 10])
def test_toy_values(ogb, read_all, size):
    graphs, rejects = read_all(ogb(), size=size)
    assert rejects == []
    assert [graph.edge_index.tolist() for graph in graphs] == [
        [[0, 1], [1, 2]],
        [[], []],
        [[0], [1]],
    ]
    assert [graph.x.tolist() for graph in graphs] == [
        [[1, 2], [3, 4], [5, 6]],
        [[7, 8]],
        [[9, 10], [11, 12]],
    ]
    assert [graph.edge_attr.tolist() for graph in graphs] == [[[0.5], [1]], [], [[1.5]]]
    assert [graph.node_species.tolist() for graph in graphs] == [[[7], [6], [5]], [[4]], [[3], [2]]]
    np.testing.assert_array_equal(
        torch.cat([graph.y for graph in graphs]), [[1, np.nan], [0, 2], [np.nan, 1]]
    )
    assert {key: value.dtype for key, value in graphs[1].to_dict().items()} == {
        "x": torch.int64,
        "edge_index": torch.int64,
        "edge_attr": torch.float32,
        "y": torch.float32,
        "node_species": torch.int64,
    }
    assert graphs[1].edge_attr.shape == (0, 1)


def test_inverse_edges_follow_their_edge(ogb, read_all):
    for graphs in (
        read_all(ogb(), inverse_edges=True)[0],
        read_all(ogb(name="ogbg_molecules"))[0],
    ):
        assert graphs[0].edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
        assert graphs[0].edge_attr.tolist() == [[0.5], [0.5], [1], [1]]
        assert graphs[1].edge_index.shape == (2, 0)


def test_node_labels_bring_masks(ogb, read_all):
    one = {"num-node-list": "6\n", "num-edge-list": "3\n", "graph-label": None}
    folder = ogb(name="ogbn_toy", **one, **{"node-label": "0\n1\n0\n1\n2\n2\n"})
    (graph,), _ = read_all(folder)
    assert graph.y.tolist() == [[0], [1], [0], [1], [2], [2]]
    assert graph.train_mask.tolist() == [True, False, True, False, False, False]
    assert graph.val_mask.tolist() == [False] * 6
    assert graph.test_mask.tolist() == [False, True, False, False, False, False]
    assert find_source(folder).splits() == {}


def test_split_is_chosen_by_name(ogb):
    splits = find_source(ogb()).splits()
    assert {name: numbers.tolist() for name, numbers in splits.items()} == {
        "train": [2, 0],
        "valid": [],
        "test": [1],
    }
    ogb(split="scaffold")
    with pytest.raises(ValueError, match="has the splits random, scaffold: name one"):
        find_source(ogb()).splits()
    assert find_source(ogb(), split="scaffold").provenance()["options"]["split"] == "scaffold"


def test_bad_lines_reject_their_graph_only(ogb, read_all):
    graphs, rejects = read_all(ogb(**{"node-feat": RAW["node-feat"].replace("7,8", "7,x")}))
    assert [graph.x.tolist() for graph in graphs] == [
        [[1, 2], [3, 4], [5, 6]],
        [[9, 10], [11, 12]],
    ]
    assert [(reject.record, reject.file.split("/")[-1]) for reject in rejects] == [
        ("graph 1", "node-feat.csv.gz")
    ]
    assert "could not convert string 'x'" in rejects[0].reason
    _, rejects = read_all(ogb(edge="0,1\n1,3\n0,1\n"))
    assert [reject.reason for reject in rejects] == ["an edge joins 3, but nodes are 0 to 2"]
    _, rejects = read_all(ogb(edge="0,1\n1,2\n"))
    assert [r.reason for r in rejects] == ["the file ends: 1 lines were expected, 0 are left"]
    with pytest.raises(FormatError, match="num-edge-list has 1 lines, num-node-list has 3"):
        read_all(ogb(**{"num-edge-list": "2\n"}))


@pytest.mark.parametrize("labels", ["1,,3\n,2,\n4,5,", "1,,3\r\n,2,\r\n4,5,\r\n"])
def test_empty_fields_are_missing_values(ogb, read_all, labels):
    graphs, rejects = read_all(ogb(**{"graph-label": labels}), size=2)
    assert rejects == []
    nan = np.nan
    found = torch.cat([graph.y for graph in graphs])
    np.testing.assert_array_equal(found, [[1, nan, 3], [nan, 2, nan], [4, 5, nan]])


@pytest.mark.parametrize("labels", ["1,\n2,0\n3,0\n", ",1\n2,0\n3,0\n", "1,0\n2,0\n3,"])
def test_one_empty_field_makes_floats(ogb, read_all, labels):
    graphs, _ = read_all(ogb(**{"graph-label": labels}))
    assert torch.cat([graph.y for graph in graphs]).isnan().sum() == 1


@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("name", ["edge", "node-feat", "graph-label"])
def test_lines_that_no_graph_counts_are_an_error(ogb, read_all, size, name):
    graphs, _ = read_all(ogb(**{name: RAW[name] + "\n"}), size=size)
    assert len(graphs) == 3
    with pytest.raises(FormatError, match=rf"raw/{name}.csv.gz has more lines than all 3 graphs"):
        read_all(ogb(**{name: RAW[name] + "0,1\n"}), size=size)


def test_negative_counts(ogb, read_all):
    with pytest.raises(FormatError, match=r"num-node-list.csv.gz, line 2: -1 is no count"):
        read_all(ogb(**{"num-node-list": "3\n-1\n2\n"}))


def test_other_files_in_the_folder(ogb, read_all):
    folder = ogb()
    (folder / "raw" / "node-feat.csv").write_text("unpacked to have a look")
    assert len(read_all(folder)[0]) == 3


@pytest.mark.parametrize("name", ["ogbg_molesol", "ogbg_molbace"])
def test_cases(case, read_all, name):
    folder = case(f"ogb/{name}")
    found, rejects = read_all(folder, size=400, inverse_edges=False)
    assert rejects == []
    raw = folder / "raw"
    assert torch.cat([graph.x for graph in found]).tolist() == rows(raw / "node-feat.csv.gz")
    joined = torch.cat([graph.edge_index.t() for graph in found])
    assert joined.tolist() == rows(raw / "edge.csv.gz")
    attrs = torch.cat([graph.edge_attr for graph in found])
    assert attrs.tolist() == rows(raw / "edge-feat.csv.gz")
    y = torch.cat([graph.y for graph in found])
    assert torch.equal(y, torch.tensor(rows(raw / "graph-label.csv.gz")).to(y.dtype))
    assert y.dtype == (torch.float32 if name == "ogbg_molesol" else torch.int64)
    splits = find_source(folder).splits()
    assert sorted(np.concatenate(list(splits.values())).tolist()) == list(range(len(found)))
