import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import pytest
from numbers_source import Numbers, Typed, contents, fail_at_30, is_even, negate

from shardgraph import ConversionError
from shardgraph.convert import convert

OPTIONS = {"on_error": "skip", "shard_size": 700, "pre_transform": negate, "pre_filter": is_even}
BAD, ODD = frozenset({0, 8, 52, 99}), frozenset({40, 41})


def run(out, source, **options):
    return convert(source, out, progress=False, **options)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The files that one process makes, of plain and of typed graphs."""
    folder = tmp_path_factory.mktemp("serial")
    run(folder / "plain", Numbers(bad=BAD, odd=ODD), **OPTIONS)
    run(folder / "typed", Typed(odd=range(80, 100)), on_error="skip")
    return {name: contents(folder / name) for name in ("plain", "typed")}


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers_makes_the_same_files(tmp_path, serial, workers):
    report = run(tmp_path / "out", Numbers(bad=BAD, odd=ODD), workers=workers, **OPTIONS)
    assert contents(tmp_path / "out") == serial["plain"]
    assert len(serial["plain"]) > 5
    assert (report.read, report.graphs, report.rejected, report.filtered) == (100, 46, 5, 49)


def test_types_met_by_two_workers_are_what_comes_first(tmp_path, serial):
    run(tmp_path / "out", Typed(odd=range(80, 100)), on_error="skip", workers=2)
    assert contents(tmp_path / "out") == serial["typed"]


@pytest.mark.slow
def test_workers_that_are_spawned(tmp_path, serial, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    run(tmp_path / "out", Numbers(bad=BAD, odd=ODD), workers=2, **OPTIONS)
    assert contents(tmp_path / "out") == serial["plain"]


def test_threads_make_the_same_files(tmp_path, serial):
    with ThreadPoolExecutor(3) as executor:
        run(tmp_path / "out", Numbers(bad=BAD, odd=ODD), executor=executor, **OPTIONS)
        assert executor.submit(int, "5").result() == 5  # still open: it is the caller's
    assert contents(tmp_path / "out") == serial["plain"]


def test_an_executor_of_the_callers_processes(tmp_path, serial):
    with ProcessPoolExecutor(2) as executor:
        run(tmp_path / "out", Numbers(bad=BAD, odd=ODD), executor=executor, **OPTIONS)
    assert contents(tmp_path / "out") == serial["plain"]


DASK = """
import sys
from dask.distributed import Client, LocalCluster
from test_parallel import BAD, ODD, OPTIONS, Numbers, run

if __name__ == "__main__":
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        source = Numbers(bad=BAD, odd=ODD)
        run(sys.argv[1], source, executor=client.get_executor(), **OPTIONS)
"""


def test_dask(tmp_path, serial):
    pytest.importorskip("distributed")
    (tmp_path / "program.py").write_text(DASK)  # in a process of its own: Dask leaves threads
    here = Path(__file__).resolve().parent
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py", tmp_path / "out"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "out") == serial["plain"]


def test_an_error_in_a_worker_names_the_record(tmp_path):
    with pytest.raises(ConversionError, match=r"numbers\.txt, graph 30: .*LookupError: no"):
        run(tmp_path / "out", Numbers(), workers=2, pre_transform=fail_at_30)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.torture
def test_a_worker_that_dies_is_told_with_its_partition(tmp_path):
    with pytest.raises(
        ConversionError, match=r"a worker died \(exit code -9\) at partition 2 .*from record 40"
    ):
        run(tmp_path / "out", Numbers(die=45), workers=2)
    assert not list((tmp_path / "out").glob(".conversion/running-*"))


def test_a_worker_that_dies_before_all_work_is_handed_out(tmp_path, monkeypatch):
    class Broken(ThreadPoolExecutor):
        def submit(self, *_):
            raise BrokenProcessPool

    @contextmanager
    def process_pool(workers):
        with Broken(workers) as pool:
            yield pool, set

    monkeypatch.setattr("shardgraph.convert.execute.process_pool", process_pool)
    with pytest.raises(ConversionError, match="a worker died before it began"):
        run(tmp_path / "out", Numbers(), workers=2)


def test_work_ends_with_the_error(tmp_path):
    """Threads cannot be ended from outside; they are told to stop."""
    source = Numbers(count=100_000, size=50_000, delay=0.001, odd={3})
    with ThreadPoolExecutor(2) as executor:
        started = time.monotonic()
        with pytest.raises(ConversionError, match="graph 3: attribute 'x'"):
            run(tmp_path / "out", source, executor=executor)
    assert time.monotonic() - started < 20
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_sent_to_workers(tmp_path):
    with pytest.raises(ValueError, match=r"cannot be sent to workers: .*Give functions by"):
        run(tmp_path / "out", Numbers(), workers=2, pre_filter=lambda data: True)  # noqa: ARG005
    assert not (tmp_path / "out").exists()


def test_a_single_partition_needs_no_worker(tmp_path):
    def here(data):
        found.add((os.getpid(), threading.get_ident()))
        return data

    found = set()
    run(tmp_path / "out", Numbers(size=100), workers=4, pre_transform=here)
    assert found == {(os.getpid(), threading.get_ident())}


def test_partitions_of_unknown_length(tmp_path):
    run(tmp_path / "out", Numbers(known=False), workers=2)
    run(tmp_path / "once", Numbers(known=False))
    assert contents(tmp_path / "out") == contents(tmp_path / "once")
