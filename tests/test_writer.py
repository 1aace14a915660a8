"""The writer publishes a whole dataset or nothing, in bounded memory, and never in between."""

import multiprocessing
import os
import re
import signal
import threading
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from graph_equality import assert_same
from torch_geometric.data import Data, HeteroData

import shardgraph as sg
from shardgraph.atomic import LockedError

fork = multiprocessing.get_context("fork")


def graph(value: int, rows: int = 25) -> Data:
    """100 bytes of values for 25 rows."""
    return Data(x=torch.full((rows, 1), float(value)))


def write(path: Path, values: range, **options) -> None:
    with sg.DatasetWriter(path, **options) as writer:
        for value in values:
            writer.write(graph(value))


def values_of(path: Path) -> list[int]:
    return [int(data.x[0]) for data in sg.ShardedDataset(path)]


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}


# Shards ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shard_size", "expected"),
    [(1, [1] * 5), (100, [1] * 5), (101, [2, 2, 1]), ("0.3kB", [3, 2]), ("1MB", [5])],
)
def test_a_shard_ends_when_its_values_reach_the_size(tmp_path, shard_size, expected):
    write(tmp_path, range(5), shard_size=shard_size)
    manifest = sg.Manifest.read(tmp_path)
    assert [entry.num_graphs for entry in manifest.shards] == expected
    assert [entry.raw_nbytes for entry in manifest.shards] == [100 * n for n in expected]
    names = [f"shard-{number:05d}.h5" for number in range(len(expected))]
    assert [entry.name for entry in manifest.shards] == names
    assert sorted(os.listdir(tmp_path)) == [".lock", "manifest.json", *names]
    assert values_of(tmp_path) == list(range(5))


def test_integers_are_as_narrow_as_each_shard_allows(tmp_path):
    values = [0, 255, 256, -1, -129, 65535, 2**32 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63)]
    expected = [
        *("u1", "u1", "u2", "i1", "i2", "u2", "u4", "i4", "i8", "i8", "i8"),
    ]
    with sg.DatasetWriter(tmp_path, shard_size=1) as writer:
        for value in values:
            writer.write(Data(v=torch.tensor([value]), f=torch.tensor([1.0]), n=value))
    for place, (value, dtype) in enumerate(zip(values, expected, strict=True)):
        with h5py.File(tmp_path / f"shard-{place:05d}.h5") as file:
            assert file["columns/v"].dtype == np.dtype(dtype)
            assert file["columns/n"].dtype == np.dtype(dtype)
            assert file["columns/f"].dtype == np.float32
            assert file["columns/v"][0] == value
    dataset = sg.ShardedDataset(tmp_path)
    assert [data.v for data in dataset] == [torch.tensor([value]) for value in values]
    assert [data.n for data in dataset] == values
    (batch,) = sg.GraphLoader(dataset, batch_size=len(values))
    assert batch.v.tolist() == batch.n.tolist() == values


def test_unsigned_integers_keep_their_whole_range(tmp_path):
    values = [0, 2**63, 2**64 - 1]
    with sg.DatasetWriter(tmp_path, shard_size=1) as writer:
        for value in values:
            writer.write(Data(v=torch.tensor([value], dtype=torch.uint64), num_nodes=1))
    dataset = sg.ShardedDataset(tmp_path)
    assert [data.v.numpy().tolist() for data in dataset] == [[value] for value in values]


def test_memory_is_bounded_by_one_shard(tmp_path):
    megabyte = Data(x=torch.zeros(250, 1000))
    with sg.DatasetWriter(tmp_path, shard_size="2MB") as writer:
        writer.write(megabyte)
        tracemalloc.start()
        try:
            for _ in range(40):
                writer.write(megabyte)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 12e6
    assert len(sg.ShardedDataset(tmp_path)) == 41


def test_equal_graphs_make_equal_files(tmp_path):
    for name in "ab":
        write(tmp_path / name, range(7), shard_size=200, compression=None)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_a_graph_may_be_changed_and_written_again(tmp_path):
    class Counting(Data):
        def __inc__(self, key, value, *args, **kwargs):
            return self.step if key == "x" else super().__inc__(key, value, *args, **kwargs)

    data = Counting(
        x=torch.zeros(2, 2), words=["a"], parts={"p": [torch.zeros(1)]}, step=torch.tensor([1, 1])
    )
    with sg.DatasetWriter(tmp_path) as writer:
        for place in range(3):
            data.x.fill_(place)
            data.words[0] = str(place)
            data.parts["p"][0].fill_(place)
            data.step.fill_(place)
            writer.write(data)
    for place, found in enumerate(sg.ShardedDataset(tmp_path)):
        assert found.x.tolist() == [[place, place]] * 2
        assert found.words == [str(place)]
        assert found.parts["p"][0].tolist() == [place]
    (batch,) = sg.GraphLoader(sg.ShardedDataset(tmp_path), batch_size=3)
    assert batch._inc_dict["x"].tolist() == [[0, 0], [0, 0], [1, 1]]


# All or nothing ----------------------------------------------------------------------------------


def test_an_exception_publishes_nothing_and_leaves_no_file(tmp_path):
    def fail(path: Path, **options) -> None:
        with sg.DatasetWriter(path, shard_size=1, **options) as writer:
            for value in range(3):
                writer.write(graph(value))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "there").mkdir()
    (tmp_path / "there/notes.txt").write_text("mine")
    with pytest.raises(KeyError, match="mine"):
        fail(tmp_path / "there")
    assert files_of(tmp_path / "there") == {"notes.txt": b"mine"}
    write(tmp_path / "old", range(3), shard_size=1)
    before = files_of(tmp_path / "old")
    with pytest.raises(KeyError, match="mine"):
        fail(tmp_path / "old", overwrite=True)
    assert files_of(tmp_path / "old") == before


def test_an_interrupt_just_after_a_shard_was_written_leaves_no_file(tmp_path, monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    writer = sg.DatasetWriter(tmp_path / "d", shard_size=1)
    writer.write(graph(0))
    monkeypatch.setattr("shardgraph.shards.write.ShardEntry", interrupted)
    with pytest.raises(KeyboardInterrupt), writer:
        writer.write(graph(1))
    assert not (tmp_path / "d").exists()


def test_without_a_graph_there_is_no_dataset(tmp_path):
    with (
        pytest.raises(ValueError, match=r"no graph was written to .*; nothing is published"),
        sg.DatasetWriter(tmp_path / "d"),
    ):
        pass
    with pytest.raises(sg.FormatError, match="does not exist"):
        sg.ShardedDataset(tmp_path / "d")


def test_a_refused_graph_is_left_out_and_writing_goes_on(tmp_path):
    with sg.DatasetWriter(tmp_path, shard_size=150) as writer:
        for value in range(6):
            with pytest.raises(sg.SchemaError, match=f"^graph {value}: "):
                writer.write(Data(x=np.zeros(2)) if value == 0 else Data(x=torch.zeros(1, 2)))
            writer.write(graph(value))
        assert writer.num_graphs == 6
    assert values_of(tmp_path) == list(range(6))
    assert sg.Manifest.read(tmp_path).statistics.num_graphs == 6


def test_a_closed_writer_takes_nothing_more(tmp_path):
    writer = sg.DatasetWriter(tmp_path)
    writer.write(graph(0))
    writer.close()
    writer.close()
    before = files_of(tmp_path)
    with pytest.raises(ValueError, match=r"the writer of .* is closed"):
        writer.write(graph(1))
    writer.abort()
    assert files_of(tmp_path) == before


def test_wrong_arguments_make_no_directory(tmp_path):
    with pytest.raises(ValueError, match="cannot read 'big' as a size"):
        sg.DatasetWriter(tmp_path / "d", shard_size="big")
    with pytest.raises(ValueError, match="a size must be positive"):
        sg.DatasetWriter(tmp_path / "d", shard_size=0)
    with pytest.raises(TypeError, match="varying must be a list of names, got the text 'adj'"):
        sg.DatasetWriter(tmp_path / "d", varying="adj")
    with pytest.raises(ValueError, match="compression must be None, 'gzip', 'zstd' or 'lz4', got"):
        sg.DatasetWriter(tmp_path / "d", compression="bz2")
    assert not (tmp_path / "d").exists()


def test_provenance_is_kept_with_the_versions(tmp_path):
    write(tmp_path, range(1), provenance={"source": "here", "seed": 3})
    found = sg.Manifest.read(tmp_path).provenance
    assert found["source"] == "here"
    assert found["seed"] == 3
    assert found["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("provenance", "message"),
    [
        ({"seed": float("nan")}, "not JSON compliant"),
        ({"source": Path("here")}, "PosixPath is not JSON serializable"),
        ({1: "a", "1": "b"}, "has the key '1' more than once"),
    ],
)
def test_provenance_that_json_cannot_hold_is_refused_before_anything_is_written(
    provenance, message, tmp_path
):
    with pytest.raises(ValueError, match=f"provenance must be what a JSON object.*{message}"):
        sg.DatasetWriter(tmp_path / "d", provenance=provenance)
    assert not (tmp_path / "d").exists()


def test_file_names_that_are_not_utf8_are_kept_in_the_provenance(tmp_path):
    name = os.fsdecode(b"caf\xe9.csv")
    write(tmp_path, range(1), provenance={"source": name})
    assert sg.Manifest.read(tmp_path).provenance["source"] == name
    assert sg.verify(tmp_path, level="full") == []


@pytest.mark.parametrize("name", ["n" * 4092, "a\nb", "\x1b[2J", "é" * 2046])
def test_names_that_hdf5_can_hold(name, tmp_path):
    with sg.DatasetWriter(tmp_path) as writer:
        writer.write(Data(x=torch.ones(2, 1), **{name: torch.ones(5, 3)}))
    assert_same(
        sg.ShardedDataset(tmp_path)[0], Data(x=torch.ones(2, 1), **{name: torch.ones(5, 3)})
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"n" * 4093: torch.ones(5, 3)},
            "the name .n+.... takes 4093 bytes, at most 4092",
        ),
        ({"é" * 2047: "text"}, "takes 4094 bytes"),
        ({"\udcff": 1.0}, r"graph 0: '\\udcff' is no name, for UTF-8 cannot encode it"),
        ({"x": torch.ones([1] * 33)}, "column 'x' would have 33 dimensions; HDF5 takes 32"),
    ],
)
def test_what_hdf5_cannot_hold_is_refused_when_it_comes(more, message, tmp_path):
    with sg.DatasetWriter(tmp_path) as writer:
        with pytest.raises(sg.SchemaError, match=message):
            writer.write(Data(**more))
        writer.write(graph(7))
    assert values_of(tmp_path) == [7]


def test_graphs_without_values_end_a_shard_too(tmp_path):
    empty = Data(x=torch.empty(0, 4), edge_index=torch.empty(2, 0, dtype=torch.long), s="")
    with sg.DatasetWriter(tmp_path, shard_size=1600) as writer:
        for _ in range(250):
            writer.write(empty)
    manifest = sg.Manifest.read(tmp_path)
    assert [entry.num_graphs for entry in manifest.shards] == [100, 100, 50]
    assert_same(sg.ShardedDataset(tmp_path)[249], empty)


def test_leftovers_of_a_crash_are_removed(tmp_path):
    for name in ("shard-00007.h5", ".shard-00000.h5.tmp-1-ab", "keep.h5", "shard-1.h5"):
        (tmp_path / name).write_bytes(b"x")
    write(tmp_path, range(1))
    left = sorted(files_of(tmp_path))
    assert left == ["keep.h5", "manifest.json", "shard-00000.h5", "shard-1.h5"]


class Sevens(Data):
    def __inc__(self, key, value, *args, **kwargs):
        return 7 if key.startswith("n") else super().__inc__(key, value, *args, **kwargs)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda i: Data(num_nodes=i), id="sizes"),
        pytest.param(
            lambda i: Data(num_nodes=1, **{f"s{k}": "a" * ((i + k) % 3) for k in range(10)}),
            id="texts",
        ),
        pytest.param(
            lambda i: Sevens(num_nodes=5, **{f"n{k}": torch.arange((i + k) % 3) for k in range(4)}),
            id="increments",
        ),
        pytest.param(lambda i: Data(num_nodes=1, v=torch.ones(i % 3, i % 2, 1, 1)), id="shapes"),
    ],
)
def test_room_is_asked_for_all_that_a_shard_takes(make, tmp_path, monkeypatch):
    """HDF5 must not meet a full disk: it ended the process by SIGSEGV."""
    asked = []

    def asking(path, nbytes):
        asked.append((path, nbytes))
        return nullcontext()

    monkeypatch.setattr("shardgraph.writer.needing_room", asking)
    with sg.DatasetWriter(tmp_path, varying=["v"], shard_size=30_000) as writer:
        for number in range(2500):
            writer.write(make(number))
    assert len(asked) == len(sg.Manifest.read(tmp_path).shards)
    for path, nbytes in asked:
        assert path.stat().st_size <= nbytes <= 3 * path.stat().st_size + 50_000


# Overwriting -------------------------------------------------------------------------------------


def test_a_dataset_is_not_replaced_unless_asked(tmp_path):
    write(tmp_path, range(3), shard_size=1)
    before = files_of(tmp_path)
    with pytest.raises(FileExistsError, match="already holds a dataset; pass overwrite=True"):
        sg.DatasetWriter(tmp_path)
    assert files_of(tmp_path) == before
    write(tmp_path, range(5, 7), overwrite=True)
    assert values_of(tmp_path) == [5, 6]
    assert len(files_of(tmp_path)) == 2
    with sg.DatasetWriter(tmp_path, overwrite=True) as writer:
        writer.write(graph(9))
        assert values_of(tmp_path) == [5, 6]
    assert values_of(tmp_path) == [9]


def test_a_dataset_that_cannot_be_read_is_replaced(tmp_path):
    """Its shards stay until the new ones are published: ``shardgraph repair`` may save them."""
    write(tmp_path, range(2), shard_size=1)
    write(tmp_path, range(2), shard_size=1, overwrite=True)
    (tmp_path / "manifest.json").write_text("{")
    before = files_of(tmp_path)
    with pytest.raises(FileExistsError, match="already holds a dataset"):
        sg.DatasetWriter(tmp_path)
    with sg.DatasetWriter(tmp_path, overwrite=True) as writer:
        writer.write(graph(9))
        assert files_of(tmp_path) == before
    assert values_of(tmp_path) == [9]
    assert sorted(files_of(tmp_path)) == ["manifest.json", "shard-00000-2.h5"]


def test_a_dataset_whose_manifest_says_an_older_generation_is_safe(tmp_path):
    """As of one that was repaired with the manifest of another: its names say more."""
    write(tmp_path, range(2), shard_size=1)
    write(tmp_path, range(2), shard_size=1, overwrite=True)
    replace(sg.Manifest.read(tmp_path), generation=0).write(tmp_path)
    before = files_of(tmp_path)
    writer = sg.DatasetWriter(tmp_path, overwrite=True, shard_size=1)
    writer.write(graph(5))
    assert values_of(tmp_path) == [0, 1]
    writer.abort()
    assert files_of(tmp_path) == before
    write(tmp_path, range(7, 8), overwrite=True)
    assert sorted(files_of(tmp_path)) == ["manifest.json", "shard-00000-2.h5"]


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_the_lock_is_given_back_even_if_cleaning_up_fails(ending, tmp_path, monkeypatch):
    def fail(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    write(tmp_path, range(1))
    writer = sg.DatasetWriter(tmp_path, overwrite=True, shard_size=1)
    writer.write(graph(0))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        with pytest.raises(PermissionError, match="Permission denied"):
            getattr(writer, ending)()
    write(tmp_path, range(3), overwrite=True)
    assert values_of(tmp_path) == [0, 1, 2]


def test_nothing_is_left_of_a_dataset_that_fails(tmp_path):
    with pytest.raises(ValueError, match="no graph was written"):
        write(tmp_path / "a/b/c", range(0))
    assert list(tmp_path.iterdir()) == []


def read_whole(path: Path) -> list[int]:
    """The dataset's values; opens it again only where another has taken its place meanwhile."""
    while True:
        try:
            return values_of(path)
        except sg.FormatError as error:
            if "holds another dataset than when it was opened" not in str(error):
                raise


def test_a_reader_always_sees_a_whole_dataset(tmp_path):
    write(tmp_path, range(4), shard_size=1)
    stop, seen, errors = threading.Event(), [], []

    def read() -> None:
        try:
            while not stop.is_set():
                seen.append(read_whole(tmp_path))
        except BaseException as error:  # noqa: BLE001  # shown by the main thread
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for turn in range(1, 12):
        write(tmp_path, range(10 * turn, 10 * turn + 4), shard_size=1, overwrite=True)
    stop.set()
    thread.join()
    assert errors == []
    allowed = [list(range(10 * turn, 10 * turn + 4)) for turn in range(12)]
    assert all(values in allowed for values in seen)
    assert [allowed.index(values) for values in seen] == sorted(map(allowed.index, seen))
    assert len(set(map(tuple, seen))) > 2


@pytest.mark.torture
def test_what_is_open_stays_readable_when_it_is_replaced(tmp_path):
    write(tmp_path, range(3), shard_size="1MB")
    dataset = sg.ShardedDataset(tmp_path)
    first = dataset[0]
    write(tmp_path, range(7, 9), overwrite=True)
    assert_same(first, dataset[0])
    assert int(dataset[2].x[0]) == 2


@pytest.mark.torture
def test_what_is_not_yet_open_when_it_is_replaced_says_so(tmp_path):
    write(tmp_path, range(3), shard_size=1)
    dataset = sg.ShardedDataset(tmp_path)
    assert int(dataset[0].x[0]) == 0
    write(tmp_path, range(7, 9), overwrite=True)
    with pytest.raises(sg.FormatError, match="holds another dataset than when it was opened; open"):
        dataset[2]


def write_without_end(path: Path, ready) -> None:
    with sg.DatasetWriter(path, shard_size=1, overwrite=True) as writer:
        for value in range(10**9):
            writer.write(graph(100 + value))
            if value == 3:
                ready.set()


@pytest.mark.torture
def test_a_killed_writer_leaves_the_dataset_that_was_there(tmp_path):
    write(tmp_path, range(3), shard_size=1)
    before = files_of(tmp_path)
    ready = fork.Event()
    writer = fork.Process(target=write_without_end, args=(tmp_path, ready))
    writer.start()
    assert ready.wait(30)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    after = files_of(tmp_path)
    assert len(after) > len(before)
    assert {name: after[name] for name in before} == before
    assert values_of(tmp_path) == [0, 1, 2]
    write(tmp_path, range(20, 21), overwrite=True)
    assert values_of(tmp_path) == [20]
    assert len(files_of(tmp_path)) == 2


# Two writers -------------------------------------------------------------------------------------


def try_to_write(path: Path, answer) -> None:
    try:
        sg.DatasetWriter(path, overwrite=True)
    except LockedError as error:
        answer.send(str(error))
    else:
        answer.send("not refused")


@pytest.mark.torture
def test_two_writers_in_one_directory_are_refused(tmp_path):
    with sg.DatasetWriter(tmp_path) as writer:
        writer.write(graph(0))
        with pytest.raises(LockedError, match=f"being written by this process .pid {os.getpid()}"):
            sg.DatasetWriter(tmp_path)
        receiver, sender = fork.Pipe()
        other = fork.Process(target=refused_elsewhere, args=(tmp_path, sender))
        other.start()
        assert re.search(rf"written by another process \(pid {os.getpid()}\)", receiver.recv())
        other.join()
    assert values_of(tmp_path) == [0]
    write(tmp_path, range(2), overwrite=True)


def refused_elsewhere(path: Path, answer) -> None:
    from shardgraph import atomic

    atomic._HELD.clear()  # what a process that did not come by fork would know
    try_to_write(path, answer)


def test_a_writer_gives_its_lock_back_however_it_ends(tmp_path):
    for ending in ("close", "abort"):
        writer = sg.DatasetWriter(tmp_path / ending, overwrite=True)
        writer.write(graph(0))
        getattr(writer, ending)()
        write(tmp_path / ending, range(1), overwrite=True)
    with pytest.raises(FileExistsError, match="already holds a dataset"):
        sg.DatasetWriter(tmp_path / "close")
    write(tmp_path / "close", range(1), overwrite=True)


@pytest.mark.parametrize(
    ("edge_index", "message"),
    [
        ([[0, 1], [1, 3]], r"graph 1: attribute 'edge_index' names node 3 of 3 nodes"),
        ([[0, -1], [1, 2]], r"graph 1: attribute 'edge_index' names node -1 of 3 nodes"),
    ],
)
def test_edges_must_join_nodes_of_the_graph(tmp_path, edge_index, message):
    good = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 2], [1, 0]]))
    with sg.DatasetWriter(tmp_path / "d") as writer:
        writer.write(good)
        with pytest.raises(sg.SchemaError, match=message):
            writer.write(Data(x=torch.ones(3, 1), edge_index=torch.tensor(edge_index)))
        writer.write(good)
    assert len(sg.ShardedDataset(tmp_path / "d")) == 2


def test_typed_edges_must_join_nodes_of_their_types(tmp_path):
    def graph(last):
        data = HeteroData()
        data["a"].x = torch.ones(2, 1)
        data["b"].x = torch.ones(4, 1)
        data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [3, last]])
        return data

    with sg.DatasetWriter(tmp_path / "d") as writer:
        writer.write(graph(2))
        with pytest.raises(sg.SchemaError, match=r"'edge_index' of .* names node 4 of 4 nodes"):
            writer.write(graph(4))
