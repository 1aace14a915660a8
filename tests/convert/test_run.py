import gzip
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from numbers_source import (
    Numbers,
    Typed,
    contents,
    fail_at_30,
    is_even,
    negate,
    number_graph,
    written,
)
from torch_geometric.data import Batch, Data, HeteroData, TemporalData

from shardgraph import ConversionError, DatasetWriter, Manifest, ShardedDataset, verify
from shardgraph.atomic import directory_lock
from shardgraph.cli import main
from shardgraph.convert import ConversionReport, Reject, convert
from shardgraph.convert.job import make_job
from shardgraph.convert.preview import preview
from shardgraph.convert.sources.pyg import PygSource


def run(out, source=None, **options):
    return convert(source or Numbers(), out, progress=False, **options)


def test_the_dataset_holds_the_records_in_order(tmp_path, assert_same):
    report = run(tmp_path / "out", Numbers(count=50))
    dataset = ShardedDataset(tmp_path / "out")
    for i, data in enumerate(dataset):
        assert_same(data, Numbers().graph(i))
    manifest = Manifest.read(tmp_path / "out")
    assert report == ConversionReport(
        path=tmp_path / "out",
        read=50,
        graphs=50,
        rejected=0,
        filtered=0,
        nodes=sum(i % 7 + 1 for i in range(50)),
        edges=sum(i % 7 + 1 for i in range(50)),
        shards=3,
        raw_nbytes=manifest.raw_nbytes,
        nbytes=sum(path.stat().st_size for path in (tmp_path / "out").glob("*.h5")),
        seconds=report.seconds,
    )
    assert manifest.provenance["source"] == {"format": "numbers", "count": 50}
    assert manifest.provenance["records"] == {
        "read": 50,
        "written": 50,
        "rejected": 0,
        "filtered": 0,
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".lock",
        "manifest.json",
        *(f"shard-0000{i}.h5" for i in range(3)),
    }


def test_one_partition_gives_the_shards_of_the_writer(tmp_path):
    run(tmp_path / "out", Numbers(count=60, size=60), shard_size=1000)
    with DatasetWriter(tmp_path / "writer", shard_size=1000) as writer:
        for i in range(60):
            writer.write(Numbers().graph(i))
    ours, theirs = contents(tmp_path / "out"), contents(tmp_path / "writer")
    assert ours.keys() == theirs.keys()
    assert len(ours) > 4
    del ours["manifest.json"], theirs["manifest.json"]
    assert ours == theirs
    ours, theirs = Manifest.read(tmp_path / "out"), Manifest.read(tmp_path / "writer")
    assert (ours.schema, ours.statistics) == (theirs.schema, theirs.statistics)


def test_many_small_partitions_share_shards(tmp_path):
    run(tmp_path / "out", Numbers(count=1000, size=2), shard_size="1GB")
    sizes = [shard.num_graphs for shard in Manifest.read(tmp_path / "out").shards]
    assert sizes == [30] * 33 + [10]
    assert written(tmp_path / "out") == list(range(1000))


def test_a_function_that_yields_graphs(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch_geometric.data import Data\n"
        "def graphs():\n"
        "    for i in range(5):\n        yield Data(x=torch.full((2, 1), float(i)))\n"
    )
    report = convert(f"{tmp_path / 'mine.py'}:graphs", tmp_path / "out")
    assert report.graphs == 5
    assert written(tmp_path / "out") == list(range(5))


# Records that cannot become graphs


def lines(out):
    return [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]


def test_a_bad_record_stops_with_file_record_reason_and_way_on(tmp_path):
    with pytest.raises(
        ConversionError, match=r"numbers\.txt, line 8: 7 is bad\. .*--on-error skip"
    ):
        run(tmp_path / "out", Numbers(bad={7}))
    assert not (tmp_path / "out").exists()


def test_bad_records_are_skipped_listed_and_counted(tmp_path):
    source = Numbers(bad={0, 7, 93}, odd={50, 51})
    report = run(tmp_path / "out", source, on_error="skip", pre_filter=is_even)
    assert lines(tmp_path / "out") == [
        {"record": 0, "file": "numbers.txt", "line": 1, "where": None, "reason": "0 is bad"},
        {"record": 7, "file": "numbers.txt", "line": 8, "where": None, "reason": "7 is bad"},
        {
            "record": 50,
            "file": "numbers.txt",
            "line": None,
            "where": "graph 50",
            "reason": "attribute 'x': expected dtype float32, found dtype torch.float64",
        },
        {"record": 93, "file": "numbers.txt", "line": 94, "where": None, "reason": "93 is bad"},
    ]
    assert (report.read, report.graphs, report.rejected, report.filtered) == (100, 48, 4, 48)
    assert written(tmp_path / "out") == [i for i in range(2, 100, 2) if i != 50]


def test_rejects_of_a_folder_name_the_file(tmp_path):
    """Those that the engine rejects too, with their number in it."""
    folder = tmp_path / "graphs"
    folder.mkdir()
    for i in range(3):
        odd = i == 1
        graphs = [number_graph(2), number_graph(3, torch.float64 if odd else torch.float32)]
        torch.save(graphs, folder / f"g_{i}.pt")
    run(tmp_path / "out", folder, on_error="skip")
    (line,) = lines(tmp_path / "out")
    assert (line["record"], line["file"], line["where"]) == (3, str(folder / "g_1.pt"), "graph 1")
    with pytest.raises(ConversionError, match=r"graphs/g_1\.pt, graph 1: attribute 'x': expected"):
        run(tmp_path / "error", folder)


WHOLE = {
    ".edges": b"0 1\n",
    ".mtx": b"%%MatrixMarket matrix coordinate pattern general\n3 3 1\n1 2\n",
    ".gml": b"graph [ node [ id 0 x 1.5 ] ]",
    ".xyz": b"1\n\nH 0 0 0\n",
}


@pytest.mark.parametrize("kind", ["edges", "edges.gz", "h5", "mtx", "mtx.gz", "gml.gz", "xyz.gz"])
def test_any_file_of_a_folder_may_be_damaged(tmp_path, kind):
    """The first too, though a source looks into it for the columns of all."""
    pytest.importorskip({"gml.gz": "networkx", "xyz.gz": "ase"}.get(kind, "h5py"))
    folder = tmp_path / "graphs"
    folder.mkdir()
    for name in "bd":
        if kind == "h5":
            with h5py.File(folder / f"{name}.h5", "w") as file:
                file["graph/x"] = [[1.0]]
        else:
            data = WHOLE[Path(f"a.{kind}".removesuffix(".gz")).suffix]
            data = gzip.compress(data) if kind.endswith("gz") else data
            (folder / f"{name}.{kind}").write_bytes(data)
    for name in "ace":
        whole = (folder / f"b.{kind}").read_bytes()
        (folder / f"{name}.{kind}").write_bytes(whole[:12] if kind.endswith("gz") else b"")
    report = run(tmp_path / "out", folder, format="hdf5" if kind == "h5" else None, on_error="skip")
    assert (report.read, report.graphs) == (5, 2)
    assert [(Path(line["file"]).name, line["where"]) for line in lines(tmp_path / "out")] == [
        (f"{name}.{kind}", "the file") for name in "ace"
    ]
    with pytest.raises(ConversionError, match=rf"a\.{kind}, the file: "):
        run(tmp_path / "error", folder, format="hdf5" if kind == "h5" else None)


def test_a_step_ends_with_many_rejects(tmp_path, monkeypatch):
    """They are in memory until then, however few graphs there are to fill a shard."""
    monkeypatch.setattr("shardgraph.convert.worker._MOST_REJECTS", 10)
    bad = {*range(25), *range(40, 100, 2)}
    whole = Numbers(bad=bad, size=100)
    report = run(tmp_path / "out", whole, on_error="skip", pre_filter=lambda data: data.y != 2)
    kept = [i for i in range(100) if i not in bad and i % 3 != 2]
    assert written(tmp_path / "out") == kept
    assert (report.read, report.rejected, report.graphs) == (100, len(bad), len(kept))
    assert [line["record"] for line in lines(tmp_path / "out")] == sorted(bad)
    ends = [0, 10, 20, 49, 69, 89, 100]  # behind each tenth
    counts = [sum(a <= i < b for i in kept) for a, b in itertools.pairwise(ends)]
    shards = Manifest.read(tmp_path / "out").shards
    assert [shard.num_graphs for shard in shards] == [count for count in counts if count]


def test_rejected_records_are_kept_on_request(tmp_path):
    source = Numbers(bad={7}, odd={8})
    run(tmp_path / "out", source, on_error="skip", keep_rejected=True)
    assert [line["raw"] for line in lines(tmp_path / "out")] == ["7", repr(source.graph(8))]


def test_a_failed_conversion_goes_on_with_skip(tmp_path):
    with pytest.raises(ConversionError, match=r"4 finished shards kept in .*\.conversion"):
        run(tmp_path / "out", Numbers(bad={93}))
    before = contents(tmp_path / "out" / ".conversion")
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert run(tmp_path / "out", Numbers(bad={93}), on_error="skip").rejected == 1
    assert contents(tmp_path / "out")["shard-00002.h5"] == before["shard-00002-00000.h5"]
    run(tmp_path / "once", Numbers(bad={93}), on_error="skip")
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


def test_rejects_found_earlier_stop_a_run_that_does_not_skip(tmp_path):
    def interrupt(data):
        if int(data.x[0, 0]) == 30:
            raise KeyboardInterrupt
        return data

    options = {"source": Numbers(bad={5}), "pre_transform": interrupt}
    with pytest.raises(KeyboardInterrupt, match="interrupted; 1 finished shard kept in"):
        run(tmp_path / "out", **options, on_error="skip")
    with pytest.raises(ConversionError, match="5 is bad"):
        run(tmp_path / "out", **options)


def test_nothing_left_is_an_error(tmp_path):
    with pytest.raises(ConversionError, match=r"none of 3 records became a graph \(3 rejected"):
        run(tmp_path / "out", Numbers(count=3, bad={0, 1, 2}), on_error="skip")
    with pytest.raises(ConversionError, match=r"none of 40 records became a graph \(40 rejected"):
        run(tmp_path / "out", Numbers(count=40, bad=range(40)), on_error="skip")
    assert not (tmp_path / "out").exists()


def test_the_report_does_not_add_up(tmp_path):
    with pytest.raises(ValueError, match=r"10 records were read, but 5 written \+ 1 rejected"):
        ConversionReport(
            path=tmp_path,
            read=10,
            graphs=5,
            rejected=1,
            filtered=2,
            nodes=0,
            edges=0,
            shards=1,
            raw_nbytes=0,
            nbytes=0,
            seconds=1.0,
        )


def test_the_report_reads_as_a_summary():
    report = ConversionReport(
        path=Path("data/esol"),
        read=1130,
        graphs=1128,
        rejected=2,
        filtered=0,
        nodes=14991,
        edges=30856,
        shards=1,
        raw_nbytes=2_480_000,
        nbytes=496_000,
        seconds=2.0,
    )
    assert str(report).splitlines() == [
        "data/esol: 1,128 graphs in 1 shard",
        "  size     14,991 nodes, 30,856 edges",
        "  bytes    2.48 MB raw, 496 kB stored (5.0 x smaller)",
        "  records  1,130 read = 1,128 written + 2 rejected (see rejects.jsonl) + 0 filtered",
        "  time     2.0 s, 564 graphs/s",
    ]


# Edits


def test_filter_then_transform(tmp_path):
    report = run(tmp_path / "out", pre_filter=is_even, pre_transform="numbers_source:negate")
    assert (report.graphs, report.filtered) == (50, 50)
    values = [float(data.x[0, 0]) for data in ShardedDataset(tmp_path / "out")]
    assert values == [-float(i) for i in range(0, 100, 2)]
    options = Manifest.read(tmp_path / "out").provenance["conversion"]
    assert options["pre_transform"]["name"] == "numbers_source:negate"
    assert options["pre_filter"]["name"] == "is_even"


def test_a_function_in_a_file(tmp_path):
    (tmp_path / "mine.py").write_text("def keep(data):\n    return data.num_nodes == 7\n")
    assert run(tmp_path / "out", pre_filter=f"{tmp_path / 'mine.py'}:keep").graphs == 14


def test_a_failing_transform_names_the_record(tmp_path):
    with pytest.raises(ConversionError, match=r"numbers\.txt, graph 30: .* LookupError: no"):
        run(tmp_path / "out", pre_transform=fail_at_30)
    report = run(tmp_path / "out", pre_transform=fail_at_30, on_error="skip")
    assert (report.graphs, report.rejected) == (99, 1)


def test_a_transform_that_returns_nothing_is_rejected(tmp_path):
    with pytest.raises(ConversionError, match=r"<lambda> returned a NoneType, not a graph: .* it,"):
        run(tmp_path / "out", pre_transform=lambda data: None)  # noqa: ARG005


def in_place(data):
    data.x += 1
    data.more["parts"][0].mul_(2)
    return data


@pytest.mark.parametrize("workers", [1, 2])
def test_a_transform_may_change_tensors_in_place(tmp_path, monkeypatch, workers):
    """Though the source holds them, and the first graph is read for its schema before."""
    monkeypatch.setattr(PygSource, "records_per_partition", 2)
    shared = torch.zeros(2, 1)
    more = {"parts": (torch.ones(1), "text"), "sizes": [1, 2]}
    torch.save([Data(x=shared, y=i, more=more) for i in range(5)], tmp_path / "list.pt")
    # Threads: two of them share the graphs, as one process does.
    with ThreadPoolExecutor(workers) as executor:
        convert(
            tmp_path / "list.pt",
            tmp_path / "out",
            pre_transform=in_place,
            executor=executor if workers > 1 else None,
            progress=False,
        )
    dataset = ShardedDataset(tmp_path / "out")
    assert [(data.y, data.x.flatten().tolist()) for data in dataset] == [
        (i, [1.0, 1.0]) for i in range(5)
    ]
    for data in dataset:
        assert data.more == {"parts": (torch.tensor([2.0]), "text"), "sizes": [1, 2]}


def a_batch(data):
    return Batch.from_data_list([data, data])


def events(data):
    ends = torch.zeros(1, dtype=torch.int64)
    return TemporalData(src=ends, dst=ends, t=ends, msg=data.x[:1])


@pytest.mark.parametrize("transform", [a_batch, events])
def test_what_is_no_single_graph_is_rejected(tmp_path, transform):
    kind = type(transform(Numbers().graph(0))).__name__
    expected = rf"pre_transform \(--transform\) {transform.__name__} returned a {kind}, not a graph"
    with pytest.raises(ConversionError, match=f"numbers.txt, graph 0: {expected}: expected one"):
        run(tmp_path / "out", pre_transform=transform)
    with pytest.raises(ConversionError, match="none of the first 100 records becomes a graph"):
        preview(make_job(Numbers(), tmp_path / "out", pre_transform=transform))
    source = Numbers()
    source.graph = lambda i: transform(Numbers().graph(i))
    with pytest.raises(ConversionError, match=f"graph 0: the source yielded a {kind}, not a graph"):
        run(tmp_path / "out", source)


def test_a_preview_rejects_what_tells_no_split(tmp_path):
    with pytest.raises(ConversionError, match=r"100 rejected\)\n.*graph 0: attribute 'part' tells"):
        preview(make_job(Numbers(), tmp_path / "out", split_by="part"))


def test_attributes_of_edges_and_of_the_graph_may_be_named_for_nodes(tmp_path):
    def typed(_):
        data = HeteroData(node_limit=7)
        data["a"].x = torch.ones(2, 1)
        data["a", "to", "a"].edge_index = torch.tensor([[0], [1]])
        data["a", "to", "a"].node_gap = torch.ones(1)
        return data

    run(tmp_path / "out", pre_transform=typed, drop=["node_gap", "node_limit"])
    data = ShardedDataset(tmp_path / "out")[0]
    assert data.to_dict().keys() == {"_global_store", "a", ("a", "to", "a")}
    assert list(data["a", "to", "a"].keys()) == ["edge_index"]
    assert dict(data._global_store) == {}


def test_keys_drop_and_cast(tmp_path):
    run(tmp_path / "keys", keys=["edge_index", "y"])
    run(tmp_path / "drop", drop=["x", "absent"])
    for name in ("keys", "drop"):
        data = ShardedDataset(tmp_path / name)[3]
        assert sorted(data.keys()) == ["edge_index", "num_nodes", "y"]
        assert data.num_nodes == 4
    run(tmp_path / "cast", cast={"x": "float16", "edge_index": "int32"})
    data = ShardedDataset(tmp_path / "cast")[3]
    assert (data.x.dtype, data.edge_index.dtype) == (torch.float16, torch.int32)
    assert torch.equal(data.x, Numbers().graph(3).x.half())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ["z"]}, r"no attribute 'z' in the graph; it has \['edge_index', 'x', 'y'\]"),
        ({"cast": {"y": "float32"}}, "attribute 'y' is a int, only tensors are cast"),
        ({"cast": {"edge_index": "bool"}}, "'edge_index' holds 2, which torch.bool cannot hold"),
        ({"cast": {"z": "bool"}}, "no attribute 'z'"),
    ],
)
def test_impossible_edits_reject_the_graph(tmp_path, options, message):
    with pytest.raises(ConversionError, match=message):
        run(tmp_path / "out", **options)


def test_an_overflowing_cast_is_rejected(tmp_path):
    def large(data):
        return Data(x=data.x * 1e6)

    with pytest.raises(ConversionError, match=r"'x' holds 1000000\.0, which torch\.float16"):
        run(tmp_path / "out", pre_transform=large, cast={"x": "float16"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "warn"}, "on_error must be 'error' or 'skip', got 'warn'"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"shard_size": "big"}, "cannot read 'big' as a size"),
        ({"compression": "rar"}, "compression must be None"),
        ({"cast": {"x": "float17"}}, "unknown dtype 'float17'"),
        ({"pre_filter": "nowhere"}, "does not name a function"),
        ({"pre_filter": "numbers_source:nothing"}, "has no function 'nothing'"),
        ({"pre_filter": "no.such.module:f"}, "cannot load no.such.module:f: No module"),
        ({"format": "smiles"}, "a Source has its format and options already"),
    ],
)
def test_wrong_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


# Types that appear late


def test_types_first_seen_in_another_partition(tmp_path):
    run(tmp_path / "out", Typed())
    dataset = ShardedDataset(tmp_path / "out")
    assert dataset[10].node_types == ["early", "late"]
    assert dataset[10]["late"].x.shape == (0, 3)
    assert torch.equal(dataset[71]["late"].x, torch.full((1, 3), 71.0))


def test_a_type_taken_for_two_things_is_what_comes_first(tmp_path):
    source = Typed(odd=range(80, 100))
    with pytest.raises(ConversionError, match="graph 80: attribute 'x': expected dtype float32"):
        convert(source, tmp_path / "out")
    assert run(tmp_path / "out", source, on_error="skip").rejected == 20
    run(tmp_path / "once", source, on_error="skip")
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


# The directory


def test_an_existing_dataset_is_refused_unless_overwrite(tmp_path):
    run(tmp_path / "out", Numbers(count=40, bad={3}), on_error="skip")
    with pytest.raises(FileExistsError, match="already holds a dataset; pass overwrite=True"):
        run(tmp_path / "out")
    run(tmp_path / "out", Numbers(count=30), overwrite=True)
    assert written(tmp_path / "out") == list(range(30))
    assert sorted(contents(tmp_path / "out")) == [
        ".lock",
        "manifest.json",
        "shard-00000-1.h5",
        "shard-00001-1.h5",
    ]


def test_a_failure_leaves_the_old_dataset(tmp_path):
    run(tmp_path / "out", Numbers(count=30))
    before = contents(tmp_path / "out")
    with pytest.raises(ConversionError, match="15 is bad"):
        run(tmp_path / "out", Numbers(bad={15}), overwrite=True)
    assert contents(tmp_path / "out") == before


def test_a_second_converter_is_refused_with_the_pid_of_the_first(tmp_path):
    (tmp_path / "out").mkdir()
    code = (
        "import sys\nfrom pathlib import Path\nfrom shardgraph.atomic import directory_lock\n"
        "with directory_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n"
        "    sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "out"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        holder.stdout.readline()
        with pytest.raises(OSError, match=rf"written by another process \(pid {holder.pid}\)"):
            run(tmp_path / "out")
        holder.kill()
        holder.wait()
    run(tmp_path / "out", Numbers(count=10))  # the lock of a dead process is no lock


def test_a_second_converter_of_one_process_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    with (
        directory_lock(tmp_path / "out"),
        pytest.raises(OSError, match=rf"being written by this process \(pid {os.getpid()}\)"),
    ):
        run(tmp_path / "out")


def test_a_source_that_breaks_its_contract(tmp_path):
    class Broken(Numbers):
        def graph(self, i):
            return {"x": i} if i == 25 else 1 / (i - 30) and super().graph(i)

    with pytest.raises(ConversionError, match="yielded a dict as record 5 of partition 1"):
        run(tmp_path / "out", Broken())
    Broken.graph = lambda self, i: Numbers.graph(self, 1 // (30 - i) * 0 + i)
    with pytest.raises(ConversionError, match=r"failed at record 10 of partition 1 .*ZeroDivis"):
        run(tmp_path / "out", Broken())


@pytest.mark.parametrize(("count", "found"), [(19, "19"), (22, "21 or more")])
def test_a_partition_that_has_not_the_records_it_said(tmp_path, count, found):
    """Such as one of a file that is changed while it is read."""

    class Changed(Numbers):
        def read(self, partition):
            yield from map(self.graph, range(count if partition.first else 20))

    expected = rf"partition 1 \(numbers.txt\) had 20 records when .* began, and has {found}: was"
    with pytest.raises(ConversionError, match=expected):
        run(tmp_path / "out", Changed())


def test_what_a_source_of_ones_own_may_give(tmp_path):
    class Loose(Numbers):
        def partitions(self):
            yield from super().partitions()

        def read(self, partition):
            for item in super().read(partition):
                bad = isinstance(item, Reject)
                yield replace(item, file=Path("a.txt"), record=np.int64(7)) if bad else item

        def splits(self):
            return {"train": [0, 3]}

    run(tmp_path / "out", Loose(bad={3}), on_error="skip")
    (line,) = lines(tmp_path / "out")
    assert (line["record"], line["file"], line["line"]) == (3, "a.txt", 7)
    assert ShardedDataset(tmp_path / "out").split("train").indices().tolist() == [0]


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        (
            "provenance",
            {"a": np.int64(1)},
            "the provenance of the numbers source must be JSON: Obj",
        ),
        (
            "provenance",
            {"a": float("nan")},
            "the provenance of the numbers source must be JSON: Out",
        ),
        ("splits", {"a": np.array([True])}, "split 'a' holds bool, not numbers of records"),
    ],
)
def test_what_a_source_of_ones_own_may_not_give(tmp_path, method, value, message):
    source = Numbers()
    setattr(source, method, lambda: value)
    with pytest.raises(ConversionError, match=message):
        run(tmp_path / "out", source)


def test_a_source_that_fails_before_its_first_record(tmp_path):
    class Broken(Numbers):
        def partitions(self):
            return [{}["no such"]]

    expected = "the numbers source failed at numbers.txt: KeyError: 'no such'"
    with pytest.raises(ConversionError, match=expected):
        run(tmp_path / "out", Broken())
    with pytest.raises(ConversionError, match=expected):
        preview(make_job(Broken(), tmp_path / "out"))


def test_memory_that_runs_out_is_no_fault_of_a_record(tmp_path):
    def hoard(_):
        raise MemoryError("Unable to allocate 7 TiB")

    class Hoarding(Numbers):
        def graph(self, i):
            return hoard(i)

    with pytest.raises(
        ConversionError, match=r"txt, graph 0: out of memory\. Unable to allocate 7"
    ):
        run(tmp_path / "out", pre_transform=hoard, on_error="skip")
    with pytest.raises(ConversionError, match=r"record 0 of partition 0 .* Unable to allocate"):
        run(tmp_path / "out", Hoarding(), on_error="skip")


@pytest.mark.skipif(sys.platform != "linux", reason="file systems elsewhere hold text only")
def test_names_that_are_no_text(tmp_path, capsys):
    name = os.fsdecode(b"gr\xfcn.edges")
    (tmp_path / name).write_bytes(b"source,target,rel\na,b,\xe4\n")
    out = tmp_path / os.fsdecode(b"out\xff")
    words = [str(tmp_path / name), str(out), "--relation", "rel"]
    assert main(["convert", *words]) == 0
    told = Manifest.read(out).provenance["source"]
    assert ([file["name"] for file in told["files"]], told["relations"]) == ([name], ["\udce4"])
    assert main(["info", str(out)]) == 0
    assert "/out\\udcff: 1 graph" in capsys.readouterr().out
    assert verify(out) == []


def test_reject_reads_as_a_sentence():
    assert str(Reject(file="a.csv", record=3, reason="no SMILES")) == "a.csv, line 3: no SMILES"


def test_negate_leaves_the_graph_of_the_source():
    data = Numbers().graph(3)
    assert torch.equal(negate(data).x, torch.full((4, 2), -3.0))


@pytest.mark.parametrize(
    ("source", "way"),
    [
        ([Numbers().graph(1)], "got a list; graphs at hand are written by a DatasetWriter: with"),
        (Numbers().graph(1), "got a Data; graphs at hand are written by a DatasetWriter"),
        (negate, "got a function; name the function that yields graphs, as 'package.module:"),
        (Numbers, "got the class Numbers itself: call it first"),
        (None, "convert takes a path, 'package.module:function' or a Source, got a NoneType"),
    ],
    ids=["list", "graph", "function", "class", "None"],
)
def test_what_is_no_input_is_told_where_to_go(tmp_path, source, way):
    with pytest.raises(TypeError, match=way):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dataset_that_cannot_be_read_is_replaced(tmp_path):
    run(tmp_path / "out", Numbers(count=30))
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(FileExistsError, match="already holds a dataset"):
        run(tmp_path / "out", Numbers(count=5))
    run(tmp_path / "out", Numbers(count=5), overwrite=True)
    assert written(tmp_path / "out") == list(range(5))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {".lock", "manifest.json", "shard-00000-1.h5"}


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path):
    with pytest.raises(ConversionError, match="LookupError: no thirty"):
        run(tmp_path / "a" / "b" / "out", Numbers(size=100), pre_transform=fail_at_30)
    assert list(tmp_path.iterdir()) == []
