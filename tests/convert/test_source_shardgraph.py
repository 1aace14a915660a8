"""Datasets converted to datasets: the same graphs, class and rules in other shards."""

import sys

import graph_cases
import numpy as np
import pytest
import torch
from graph_equality import assert_same
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader

from shardgraph import ConversionError, DatasetWriter, FormatError, Manifest, ShardedDataset
from shardgraph.cli import main
from shardgraph.convert import convert, find_source


def plain(rng):
    n = int(rng.integers(0, 6))
    edge_index = graph_cases.random_edges(rng, n, 2 * n)
    return Data(x=torch.rand(n, 2), edge_index=edge_index, y=int(rng.integers(0, 3)), name="ü")


def isolated(rng):
    n = int(rng.integers(2, 6))
    return Data(edge_index=torch.tensor([[0], [1]]), num_nodes=n, text=["a", "b"])


def varying(rng):
    shape = (int(rng.integers(0, 3)), int(rng.integers(1, 4)))
    nested = {"deep": [torch.rand(shape)], "own": torch.rand(*shape, 1)}
    return Data(num_nodes=2, grid=torch.rand(shape), nested=nested)


def missing_types(rng):
    return graph_cases.hetero(rng, types=["ab", "abc", "c"][int(rng.integers(0, 3))])


KINDS = {
    "plain": plain,
    "isolated": isolated,
    "varying": varying,
    "missing types": missing_types,
    "pair": graph_cases.pair,
    "bipartite": graph_cases.bipartite,
    "ruled": graph_cases.ruled,
    "ruled hetero": graph_cases.ruled_hetero,
    "every dtype": lambda rng: graph_cases.every_dtype(rng, int(rng.integers(0, 4))),
    "nested": lambda rng: graph_cases.nested(rng, int(rng.integers(0, 4))),
    "sparse": lambda rng: graph_cases.sparse(rng, int(rng.integers(1, 4))),
    "indexed": lambda rng: graph_cases.indexed(rng, int(rng.integers(2, 4))),
}
VARYING = ("grid", "deep", "own")


def write(path, graphs, **options):
    with DatasetWriter(path, **options) as writer:
        for data in graphs:
            writer.write(data)
    return path


def run(source, out, **options):
    return convert(source, out, progress=False, **options)


def merged(path, *also):
    return find_source(path, format="shardgraph", also=[str(other) for other in also])


def shards(path):
    return [file.read_bytes() for file in sorted(path.glob("shard-*.h5"))]


@pytest.fixture
def numbers(tmp_path):
    """A dataset of 30 graphs in small shards, split in two."""
    graphs = [Data(x=torch.full((i % 4, 2), float(i)), num_nodes=i % 4, y=i) for i in range(30)]
    write(tmp_path / "made", graphs, shard_size=200)
    run(tmp_path / "made", tmp_path / "numbers", shard_size=200, split="train=0.8,val=0.2")
    return tmp_path / "numbers"


@pytest.mark.parametrize("known", [True, False], ids=["class known", "class unknown"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.filterwarnings("ignore:Unable to accurately infer")
def test_every_kind_of_graph_is_stored_again_as_it_was(tmp_path, monkeypatch, kind, known):
    rng = np.random.default_rng([7, list(KINDS).index(kind)])
    graphs = [KINDS[kind](rng) for _ in range(12)]
    options = {"varying": [name for name in VARYING if kind == "varying"]}
    write(tmp_path / "whole", graphs, **options)
    write(tmp_path / "parts", graphs, shard_size=100, **options)
    with monkeypatch.context() as patch:
        if not known:
            patch.delitem(sys.modules, "graph_cases")
        run(tmp_path / "parts", tmp_path / "again")
        run(tmp_path / "again", tmp_path / "small", shard_size=100)
    whole, again = Manifest.read(tmp_path / "whole"), Manifest.read(tmp_path / "again")
    assert again.schema == whole.schema
    assert again.statistics == whole.statistics
    # One shard each: schema, values, order and rules are the same, byte for byte.
    assert shards(tmp_path / "again") == shards(tmp_path / "whole")
    if kind != "missing types":  # a shard has the columns of the types met so far
        assert shards(tmp_path / "small") == shards(tmp_path / "parts")
    assert len(shards(tmp_path / "small")) > 1
    found = ShardedDataset(tmp_path / "small")
    assert_same(list(ShardedDataset(tmp_path / "whole")), list(found))
    assert type(found[0]) is type(graphs[0])


def test_unknown_class_batches_by_the_recorded_rules(tmp_path, monkeypatch):
    graphs = [graph_cases.pair(np.random.default_rng(i)) for i in range(6)]
    write(tmp_path / "in", graphs)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "graph_cases")
        run(tmp_path / "in", tmp_path / "out", shard_size=100)
        (found,) = DataLoader(ShardedDataset(tmp_path / "out"), batch_size=6)
    expected = Batch.from_data_list(graphs)
    for name in ("edge_index_s", "edge_index_t", "x_s", "x_t"):
        assert_same(expected[name], found[name])


class Scaled(Data):
    """Has a method of its own, and the usual rules."""

    def scaled(self, factor):
        self.x = self.x * factor
        return self


def scale(data):
    return data.scaled(2)


@pytest.mark.parametrize("workers", [1, 2])
def test_transforms_have_the_methods_of_the_class(tmp_path, workers):
    write(tmp_path / "in", [Scaled(x=torch.full((1, 1), float(i))) for i in range(3)])
    twice = merged(tmp_path / "in", tmp_path / "in")
    run(twice, tmp_path / "out", pre_transform=scale, workers=workers)
    dataset = ShardedDataset(tmp_path / "out")
    assert [float(data.x) for data in dataset] == [0, 2, 4, 0, 2, 4]
    assert type(dataset[0]) is Scaled


def test_compressed_and_back(tmp_path, numbers):
    run(numbers, tmp_path / "gzip", compression="gzip", shard_size="1MB")
    assert len(Manifest.read(tmp_path / "gzip").shards) == 1
    run(tmp_path / "gzip", tmp_path / "back", shard_size=200)
    assert_same(list(ShardedDataset(numbers)), list(ShardedDataset(tmp_path / "gzip")))
    assert shards(tmp_path / "back") == shards(numbers)


def test_projected_cast_and_filtered(tmp_path, numbers):
    report = run(
        numbers, tmp_path / "out", keys=["x"], cast={"x": "float16"}, pre_filter=lambda d: d.y > 9
    )
    assert (report.read, report.graphs, report.filtered) == (30, 20, 10)
    found = ShardedDataset(tmp_path / "out")
    assert [data.x.tolist() for data in found] == [[[i, i]] * (i % 4) for i in range(10, 30)]
    assert found[0].x.dtype == torch.float16
    assert sorted(found[0].keys()) == ["num_nodes", "x"]
    # The splits are those of the graphs that are left.
    before, after = (
        {int(data.x[0, 0]) for data in dataset if data.num_nodes}
        for dataset in (ShardedDataset(numbers).split("val"), found.split("val"))
    )
    assert after == {number for number in before if number > 9}


def test_several_become_one(tmp_path, numbers, capsys):
    extra = [Data(x=torch.full((1, 2), 100.0 + i), num_nodes=1, y=i) for i in range(5)]
    other = write(tmp_path / "with, comma", extra)
    third = write(tmp_path / "root" / "processed", extra[:1])
    arguments = ["--also", str(other), "--also", str(third.parent), "--shard-size", "200"]
    assert main(["convert", str(numbers), str(tmp_path / "out"), *arguments]) == 0
    assert "36 graphs in" in capsys.readouterr().out
    found = ShardedDataset(tmp_path / "out")
    assert_same([*ShardedDataset(numbers), *extra, extra[0]], list(found))
    run(merged(numbers, other, third), tmp_path / "two", shard_size=200, workers=2)
    assert shards(tmp_path / "two") == shards(tmp_path / "out")
    provenance = found.manifest.provenance["source"]
    assert provenance["datasets"] == ["numbers", "with, comma", "processed"]
    # Ids of the splits are counted on, over the datasets.
    assert found.split("val").indices().tolist() == (
        ShardedDataset(numbers).split("val").indices().tolist()
    )
    run(merged(other, numbers), tmp_path / "turned")
    shifted = [5 + i for i in ShardedDataset(numbers).split("val").indices().tolist()]
    assert ShardedDataset(tmp_path / "turned").split("val").indices().tolist() == shifted


def test_datasets_that_do_not_fit_each_other(tmp_path, numbers):
    other = write(tmp_path / "other", [Data(x=torch.ones(1, 3), num_nodes=1, y=0)])
    with pytest.raises(ConversionError, match=r"other, graph 0.*attribute 'x': expected"):
        run(merged(numbers, other), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    run(merged(numbers, other), tmp_path / "rest", drop=["x"])
    assert len(ShardedDataset(tmp_path / "rest")) == 31
    typed = HeteroData()
    typed["a"].x = torch.ones(1, 3)
    typed = write(tmp_path / "typed", [typed])
    with pytest.raises(ConversionError, match=r"typed, graph 0.*expected a torch_geometric.data"):
        run(merged(numbers, typed), tmp_path / "mixed")


def test_onto_itself(numbers):
    before = list(ShardedDataset(numbers))
    run(numbers, numbers, overwrite=True, shard_size="1MB")
    assert_same(before, list(ShardedDataset(numbers)))
    assert len(list(numbers.glob("*.h5"))) == 1


def test_recognition(tmp_path, numbers):
    assert find_source(numbers).name == "shardgraph"
    write(tmp_path / "root" / "processed", [Data(num_nodes=1)])
    assert find_source(tmp_path / "root").name == "shardgraph"
    with pytest.raises(FormatError, match="is a file; name the directory of a dataset"):
        find_source(numbers / "shard-00000.h5")
    with pytest.raises(FileNotFoundError, match=r"no such folder: .*absent"):
        find_source(numbers, also=[str(tmp_path / "absent")])
    with pytest.raises(FormatError, match=r"has no manifest.json"):
        find_source(numbers, also=[str(tmp_path)])
    with pytest.raises(TypeError, match="also takes a list"):
        find_source(numbers, also=str(numbers))


def test_damage_is_an_error(tmp_path, numbers):
    shard = numbers / "shard-00000.h5"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"shard-00000.h5"):
        run(numbers, tmp_path / "out", on_error="skip")
    assert not (tmp_path / "out").exists()


def test_targets_are_told_on(tmp_path):
    source = {"format": "smiles", "targets": ["gap"]}
    graphs = [Data(y=torch.ones(1, 1), num_nodes=1)]
    for name in ("a", "b"):
        write(tmp_path / name, graphs, provenance={"source": source})
    assert run(tmp_path / "a", tmp_path / "again").targets == ("gap",)
    assert run(merged(tmp_path / "a", tmp_path / "b"), tmp_path / "c").targets == ("gap",)
    write(tmp_path / "d", graphs)
    assert run(merged(tmp_path / "a", tmp_path / "d"), tmp_path / "e").targets == ()
