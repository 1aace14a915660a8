import numpy as np
import pytest
import torch
from numbers_source import Numbers, Typed, contents, is_even, number_graph
from torch_geometric.data import Data, HeteroData

from shardgraph import ConversionError, DatasetWriter, Manifest, ShardedDataset
from shardgraph.convert import convert
from shardgraph.convert.shuffle import ShuffledSource


def run(out, source=None, **options):
    return convert(source or Numbers(), out, progress=False, **options)


def order_of(out):
    return [int(data.x[0, 0]) for data in ShardedDataset(out)]


class Pairs(Data):
    """Graphs with a rule of their own: column ``y_index`` counts the nodes of y."""

    def __inc__(self, key, value, *args, **kwargs):
        return self.num_y if key == "y_index" else super().__inc__(key, value, *args, **kwargs)


class Various(Numbers):
    """Graphs with all kinds of columns."""

    def graph(self, i):
        n = i % 4
        generator = torch.Generator().manual_seed(i)
        return Pairs(
            x=torch.full((n + 1, 2), float(i), dtype=torch.bfloat16),
            edge_index=torch.randint(n + 1, (2, n), generator=generator),
            y_index=torch.arange(n),
            num_y=i % 5,
            z=torch.randn(n, dtype=torch.complex64, generator=generator),
            image=torch.randn(n, 1 + i % 3, generator=generator),
            large=torch.tensor([2**40 if i == 77 else i]),
            text="t" * n,
            notes={"a": [1, None], "n": n},
            adj=torch.eye(n).to_sparse_coo(),
        )


class Hetero(Typed):
    """Graphs whose edges join a type that some graphs lack."""

    def graph(self, i):
        data = HeteroData()
        data["early"].x = torch.full((i % 3 + 1, 2), float(i))
        if i % 4:
            data["late"].x = torch.ones(i % 2 + 1, 3)
            data["early", "to", "late"].edge_index = torch.zeros(2, i % 3, dtype=torch.int64)
        data.y = i
        return data


def test_the_graphs_are_the_same_in_another_order(tmp_path):
    report = run(tmp_path / "out", shuffle=1)
    assert report.graphs == 100
    order = order_of(tmp_path / "out")
    assert sorted(order) == list(range(100))
    assert order != list(range(100))
    assert np.abs(np.diff(order)).mean() > 20
    run(tmp_path / "again", shuffle=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "again")
    run(tmp_path / "other", shuffle=2)
    assert order_of(tmp_path / "other") != order
    assert Manifest.read(tmp_path / "out").provenance["conversion"]["shuffle"] == 1


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("source", [Various(), Numbers(), Hetero()])
def test_the_shards_are_those_of_writing_the_graphs_in_that_order(tmp_path, source, compression):
    options = {"compression": compression, "varying": ["image"]}
    run(tmp_path / "out", source, shuffle=3, shard_size="1MB", **options)
    run(tmp_path / "ordered", source, varying=["image"])
    shuffled = ShuffledSource(tmp_path / "ordered", seed=3, shard_size=10**6)
    (partition,) = shuffled.partitions()
    assert partition.num_records == source.count
    with DatasetWriter(tmp_path / "writer", **options) as writer:
        for i in shuffled._order.tolist():
            writer.write(source.graph(i))
    ours, theirs = contents(tmp_path / "out"), contents(tmp_path / "writer")
    assert ours["shard-00000.h5"] == theirs["shard-00000.h5"]
    ours, theirs = Manifest.read(tmp_path / "out"), Manifest.read(tmp_path / "writer")
    assert ours.statistics == theirs.statistics


def test_many_shards_and_workers(tmp_path):
    source = Various(size=20)
    options = {"shuffle": 4, "shard_size": 3000, "varying": ["image"]}
    run(tmp_path / "one", source, **options)
    run(tmp_path / "two", source, workers=2, **options)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(Manifest.read(tmp_path / "one").shards) > 4
    numbers = sorted(int(data.x[0, 0]) for data in ShardedDataset(tmp_path / "one"))
    assert numbers == sorted(int(torch.tensor(float(i)).bfloat16()) for i in range(100))


def test_the_account_and_the_rejects_are_of_the_input(tmp_path):
    source = Numbers(bad={7})
    report = run(tmp_path / "out", source, shuffle=0, on_error="skip", pre_filter=is_even)
    assert (report.read, report.graphs, report.rejected, report.filtered) == (100, 50, 1, 49)
    run(tmp_path / "ordered", source, on_error="skip", pre_filter=is_even)
    assert (
        contents(tmp_path / "out")["rejects.jsonl"]
        == contents(tmp_path / "ordered")["rejects.jsonl"]
    )


def test_splits_follow_the_graphs(tmp_path):
    class Given(Numbers):
        def splits(self):
            return {"low": np.arange(30), "high": np.arange(30, 100)}

        def graph(self, i):
            data = number_graph(i)
            data.part = "even" if i % 2 == 0 else "odd"
            return data

    def members(out):
        dataset = ShardedDataset(out)
        return {
            name: sorted(int(data.x[0, 0]) for data in dataset.split(name))
            for name in Manifest.read(out).splits
        }

    run(tmp_path / "given", Given(bad={3}), shuffle=0, on_error="skip")
    assert members(tmp_path / "given") == {
        "low": [i for i in range(30) if i != 3],
        "high": list(range(30, 100)),
    }
    run(tmp_path / "by", Given(), shuffle=0, split_by="part")
    assert members(tmp_path / "by") == {
        "even": list(range(0, 100, 2)),
        "odd": list(range(1, 100, 2)),
    }
    run(tmp_path / "random", Given(), shuffle=0, split="a=0.5,b=0.5")
    found = members(tmp_path / "random")
    assert sorted(found["a"] + found["b"]) == list(range(100))


@pytest.mark.parametrize("at", [3, 50])
def test_an_error_while_the_input_is_read(tmp_path, at):
    with pytest.raises(ConversionError, match=f"{at} is bad"):
        run(tmp_path / "out", Numbers(bad={at}), shuffle=0)
    assert (tmp_path / "out").exists() == (at == 50)
    run(tmp_path / "out", Numbers(bad={at}), shuffle=0, on_error="skip")
    run(tmp_path / "once", Numbers(bad={at}), shuffle=0, on_error="skip")
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


def test_an_interruption_while_shuffling(tmp_path, monkeypatch):
    read = ShuffledSource.read

    def interrupted(self, partition):
        for number, item in enumerate(read(self, partition)):
            if partition.first and number == 3:
                raise KeyboardInterrupt
            yield item

    options = {"shuffle": 0, "shard_size": 2000}
    with monkeypatch.context() as patch:
        patch.setattr(ShuffledSource, "read", interrupted)
        with pytest.raises(KeyboardInterrupt, match="finished shards kept in"):
            run(tmp_path / "out", **options)
    kept = sorted((tmp_path / "out" / ".conversion").glob("shard-*.h5"))
    inodes = [path.stat().st_ino for path in kept]
    assert inodes
    run(tmp_path / "out", **options)
    final = sorted((tmp_path / "out").glob("shard-*.h5"))
    assert [path.stat().st_ino for path in final][: len(inodes)] == inodes
    run(tmp_path / "once", **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


def test_another_split_of_records_once_they_are_shuffled(tmp_path, monkeypatch):
    """They are no late choice then: the first conversion, in their order, has made it."""
    path = tmp_path / "split.json"
    path.write_text('{"a": [1]}')

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ShuffledSource, "read", interrupted)
        with pytest.raises(KeyboardInterrupt, match="shards kept in"):
            run(tmp_path / "out", shuffle=0, split_file=path)
    path.write_text('{"a": [2]}')
    with pytest.raises(ConversionError, match=r"another conversion \(conversion split_file: "):
        run(tmp_path / "out", shuffle=0, split_file=path)
    run(tmp_path / "out", shuffle=0, split_file=path, resume=False)
    (place,) = ShardedDataset(tmp_path / "out").split("a").indices()
    assert order_of(tmp_path / "out")[place] == 2
