import sqlite3

import pytest
import torch
from torch_geometric.data import Data, HeteroData, OnDiskDataset

from shardgraph.convert import find_source
from shardgraph.errors import FormatError


class Columns(OnDiskDataset):
    def __init__(self, root):
        schema = {
            "x": {"dtype": torch.float32, "size": (-1, 2)},
            "edge_index": {"dtype": torch.int64, "size": (2, -1)},
            "mask": {"dtype": torch.bool, "size": (-1,)},
            "y": float,
            "num": int,
            "name": str,
            "extra": object,
        }
        super().__init__(root, schema=schema)

    def serialize(self, data):
        return data.to_dict()

    def deserialize(self, data):
        return Data.from_dict(data)


def graph(i):
    return Data(
        x=torch.full((i, 2), i / 2),
        edge_index=torch.tensor([[0], [i - 1]]),
        mask=torch.arange(i) > 0,
        y=i / 4,
        num=i,
        name=f"g{i}",
        extra={"a": torch.ones(i)},
    )


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("size", [2, 10])
def test_saved_objects(tmp_path, read_all, assert_same, size):
    hetero = HeteroData(y=torch.ones(1))
    hetero["a"].x = torch.ones(2, 1)
    hetero["a", "to", "a"].edge_index = torch.tensor([[0], [1]])
    expected = [Data(x=torch.ones(i, 1)) for i in range(1, 5)] + [hetero]
    dataset = OnDiskDataset(str(tmp_path))
    dataset.extend(expected)
    dataset.close()
    for spec in (tmp_path, tmp_path / "processed", tmp_path / "processed" / "sqlite.db"):
        graphs, rejects = read_all(spec, size=size)
        assert rejects == []
        for read, wanted in zip(graphs, expected, strict=True):
            assert_same(read, wanted)


def test_columns_with_a_schema(tmp_path, read_all):
    dataset = Columns(str(tmp_path))
    dataset.extend([graph(i) for i in (1, 2, 3)])
    dataset.close()
    schema = ["x=float32:-1,2", "mask=bool"]
    graphs, rejects = read_all(tmp_path, schema=schema)
    assert rejects == []
    for i, read in enumerate(graphs, start=1):
        wanted = graph(i)
        assert list(read.keys()) == list(wanted.keys())
        for key in ("x", "edge_index", "mask"):
            assert torch.equal(read[key], wanted[key])
            assert read[key].dtype == wanted[key].dtype
        assert (read.y, read.num, read["name"]) == (wanted.y, wanted.num, wanted["name"])
        assert torch.equal(read.extra["a"], wanted.extra["a"])
    _, rejects = read_all(tmp_path, schema=["x=float32:-1,5", "mask=bool"])
    assert "cannot reshape array of size 2" in rejects[0].reason
    _, rejects = read_all(tmp_path)
    assert [reject.record for reject in rejects] == ["row 0", "row 1", "row 2"]
    assert "column x is a tensor of 8 bytes, and the database does not tell" in rejects[0].reason


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_pickles_run_no_code(tmp_path, read_all, capsys):
    dataset = OnDiskDataset(str(tmp_path))
    dataset.extend([Data(a=Evil()), Data(x=torch.ones(1))])
    dataset.close()
    graphs, rejects = read_all(tmp_path)
    assert len(graphs) == 1
    assert "print, which is not one of" in rejects[0].reason
    assert capsys.readouterr().out == ""


def test_faults(tmp_path, read_all):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (id INTEGER, value TEXT)")
    connection.close()
    with pytest.raises(FormatError, match=r"a.db holds no table of an OnDiskDataset"):
        read_all(path, format="ondisk")
    with pytest.raises(FormatError, match=r"holds no sqlite.db"):
        read_all(tmp_path, format="ondisk")
    with pytest.raises(ValueError, match=r"schema takes NAME=DTYPE.*got 'x=float128'"):
        find_source(path, format="ondisk", schema=["x=float128"])


def test_the_notes_beside_the_database_are_not_taken_for_data(tmp_path):
    dataset = OnDiskDataset(str(tmp_path), log=False)
    dataset.append(graph(1))
    dataset.close()
    for name in ("pre_transform.pt", "pre_filter.pt"):
        torch.save("repr", tmp_path / "processed" / name)
    assert find_source(tmp_path / "processed").name == "ondisk"
    assert find_source(tmp_path).name == "ondisk"
