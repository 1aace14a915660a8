"""A subclass generates its graphs once, whatever happens in between."""

import inspect
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, Dataset

import shardgraph as sg
from shardgraph import processing

fork = multiprocessing.get_context("fork")


class Numbers(sg.ShardedDataset):
    """One graph for each line of a raw file."""

    raw_file_names = ("numbers.txt",)
    runs = 0

    def download(self) -> None:
        Path(self.raw_dir, "numbers.txt").write_text("1\n2\n3\n4\n")

    def generate(self):
        type(self).runs += 1
        for line in Path(self.raw_paths[0]).read_text().split():
            yield Data(x=torch.full((1, 1), float(line)), number=int(line))


@pytest.fixture(autouse=True)
def no_runs_yet():
    Numbers.runs = 0


def numbers(dataset) -> list[int]:
    return [data.number for data in dataset]


def test_graphs_are_downloaded_and_generated_once(tmp_path):
    dataset = Numbers(str(tmp_path))
    assert numbers(dataset) == [1, 2, 3, 4]
    assert sorted(os.listdir(tmp_path)) == [".lock", "processed", "raw"]
    assert sorted(os.listdir(tmp_path / "processed")) == [
        ".lock",
        "manifest.json",
        "shard-00000.h5",
    ]
    assert dataset.processed_paths == [str(tmp_path / "processed/manifest.json")]
    assert numbers(Numbers(tmp_path)) == [1, 2, 3, 4]
    assert Numbers.runs == 1
    assert numbers(sg.ShardedDataset(tmp_path)) == [1, 2, 3, 4]
    assert numbers(sg.ShardedDataset(tmp_path / "processed")) == [1, 2, 3, 4]


def is_even(data: Data) -> bool:
    return data.number % 2 == 0


def tenfold(data: Data) -> Data:
    data.number *= 10
    return data


def test_filters_come_before_pre_transforms(tmp_path):
    dataset = Numbers(tmp_path, pre_filter=is_even, pre_transform=tenfold, transform=tenfold)
    assert numbers(dataset) == [200, 400]
    assert dataset.get(0).number == 20
    assert [data.number for data in dataset[1:].__getitems__([0])] == [400]


def test_force_reload_generates_anew(tmp_path):
    Numbers(tmp_path)
    (tmp_path / "raw/numbers.txt").write_text("7\n")
    assert numbers(Numbers(tmp_path, force_reload=True)) == [7]
    assert Numbers.runs == 2
    assert len(list((tmp_path / "processed").glob("*.h5"))) == 1


def test_another_processing_is_warned_of(tmp_path):
    Numbers(tmp_path)
    with pytest.warns(
        UserWarning, match=r"processed with another pre_filter than now; pass force_"
    ):
        Numbers(tmp_path, pre_filter=is_even)
    with pytest.warns(UserWarning, match="with another pre_transform and pre_filter than now"):
        Numbers(tmp_path, pre_filter=is_even, pre_transform=tenfold)
    (tmp_path / "raw/numbers.txt").write_text("7\n8\n9\n")
    with pytest.warns(UserWarning, match="with another raw files than now"):
        assert numbers(Numbers(tmp_path)) == [1, 2, 3, 4]

    class Changed(Numbers):
        def generate(self):
            yield from ()

    (tmp_path / "raw/numbers.txt").write_text("1\n2\n3\n4\n")
    with pytest.warns(UserWarning, match=r"with another generate\(\) than now"):
        Changed(tmp_path)
    assert Numbers.runs == 1


def test_a_half_finished_processing_is_begun_again(tmp_path):
    class Failing(Numbers):
        def generate(self):
            for place, data in enumerate(super().generate()):
                if place == 2:
                    raise OSError("the disk went away")
                yield data

    with pytest.raises(OSError, match="the disk went away"):
        Failing(tmp_path)
    assert not (tmp_path / "processed").exists()
    with pytest.raises(sg.FormatError, match="has no manifest"):
        sg.ShardedDataset(tmp_path)
    (tmp_path / "processed").mkdir()
    (tmp_path / "processed/shard-00000.h5").write_bytes(b"left by a crash")
    assert numbers(Numbers(tmp_path)) == [1, 2, 3, 4]


def test_a_failed_reload_leaves_the_old_graphs(tmp_path):
    Numbers(tmp_path)
    (tmp_path / "raw/numbers.txt").write_text("5\nsix\n")
    with pytest.raises(ValueError, match="could not convert string to float: 'six'"):
        Numbers(tmp_path, force_reload=True)
    assert numbers(sg.ShardedDataset(tmp_path)) == [1, 2, 3, 4]


def test_missing_raw_files_are_named(tmp_path):
    class NoDownload(sg.ShardedDataset):
        raw_file_names = ("edges.csv",)

        def generate(self):
            yield Data()

    with pytest.raises(FileNotFoundError, match=r"raw file .*edges.csv is missing; put it there"):
        NoDownload(tmp_path)


def test_no_graph_is_an_error(tmp_path):
    with pytest.raises(sg.ConversionError, match=r"Numbers.generate\(\) gave no graph"):
        Numbers(tmp_path, pre_filter=lambda _: False)
    assert not list((tmp_path / "processed").glob("*.h5"))


def test_a_dataset_made_otherwise_is_not_taken_for_ones_own(tmp_path):
    with sg.DatasetWriter(tmp_path / "processed") as writer:
        writer.write(Data(number=1))
    with pytest.raises(sg.FormatError, match=r"holds a dataset that was not made by generate\(\)"):
        Numbers(tmp_path)


def test_the_way_of_pygs_own_datasets_is_told_from_ours(tmp_path):
    class OfPyG(sg.ShardedDataset):
        raw_file_names = ("graphs.txt",)
        processed_file_names = ("data.pt",)

        def download(self):
            raise OSError("nothing is downloaded")

        def process(self):
            self.save([Data(number=1)], self.processed_paths[0])

    message = (
        r"OfPyG defines process\(\), which ShardedDataset does not call: rename it generate\(\), "
        "and yield the graphs one by one instead of saving a list"
    )
    with pytest.raises(TypeError, match=message):
        OfPyG(tmp_path / "new")
    Numbers(tmp_path)
    with pytest.raises(TypeError, match=message):
        OfPyG(tmp_path)


def test_functions_are_given_in_the_order_of_pyg(tmp_path):
    class Positional(Numbers):
        def __init__(self, root, transform=None, pre_transform=None, pre_filter=None):
            super().__init__(root, transform, pre_transform, pre_filter)

    dataset = Positional(tmp_path, tenfold, tenfold, is_even)
    assert numbers(dataset) == [200, 400]
    theirs = [*inspect.signature(Dataset).parameters][:4]
    assert [*inspect.signature(sg.ShardedDataset).parameters][:4] == theirs


def test_only_classes_that_generate_process(tmp_path):
    with sg.DatasetWriter(tmp_path) as writer:
        writer.write(Data(number=1))
    dataset = sg.ShardedDataset(tmp_path)
    assert not dataset.has_process
    assert not dataset.has_download
    assert os.listdir(tmp_path).count("processed") == 0
    with pytest.raises(NotImplementedError, match=r"ShardedDataset does not define generate\(\)"):
        dataset.generate()


class Slow(sg.ShardedDataset):
    """Tells when it generates."""

    def generate(self):
        with Path(self.root, "runs").open("a") as file:
            file.write("x")
        time.sleep(0.3)
        yield Data(number=1)


def read(root: Path, answer, force_reload: bool) -> None:
    answer.put(numbers(Slow(root, force_reload=force_reload)))


@pytest.mark.torture
def test_processes_that_start_at_once_build_once(tmp_path):
    answer = fork.Queue()
    processes = [fork.Process(target=read, args=(tmp_path, answer, False)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [answer.get(timeout=30) for _ in processes] == [[1]] * 3
    for process in processes:
        process.join()
    answer.close()
    answer.join_thread()
    assert (tmp_path / "runs").read_text() == "x"


def test_threads_that_start_at_once_build_once(tmp_path):
    with ThreadPoolExecutor(3) as executor:
        found = [executor.submit(Slow, tmp_path) for _ in range(3)]
    assert [numbers(future.result()) for future in found] == [[1]] * 3
    assert (tmp_path / "runs").read_text() == "x"


def test_a_manifest_that_cannot_be_read_is_replaced_on_reload(tmp_path):
    Numbers(tmp_path)
    (tmp_path / "processed/manifest.json").write_text("{")
    with pytest.raises(sg.FormatError, match="cannot read"):
        Numbers(tmp_path)
    assert numbers(Numbers(tmp_path, force_reload=True)) == [1, 2, 3, 4]
    assert sorted(os.listdir(tmp_path / "processed")) == [
        ".lock",
        "manifest.json",
        "shard-00000-1.h5",
    ]


def test_a_build_that_ends_just_before_the_lock_is_taken_counts(tmp_path, monkeypatch):
    build = processing.build

    def build_late(dataset) -> None:
        monkeypatch.setattr("shardgraph.dataset.build", build)
        Slow(tmp_path)  # as another process, done between the look and the lock
        build(dataset)

    monkeypatch.setattr("shardgraph.dataset.build", build_late)
    assert numbers(Slow(tmp_path)) == [1]
    assert (tmp_path / "runs").read_text() == "x"
    assert numbers(Slow(tmp_path, force_reload=True)) == [1]
    assert (tmp_path / "runs").read_text() == "xx"
