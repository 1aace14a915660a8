"""Forks, spawns, limits and signals: right graphs or a clear error, and nothing is left behind."""

import dataclasses
import gc
import multiprocessing
import os
import resource
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch_geometric.loader import DataLoader
from torture_tools import (
    Child,
    are_right,
    is_right,
    linux,
    mount_tmpfs,
    outcome,
    own_mounts,
    why_no_mounts,
    write,
)

import shardgraph as sg
from shardgraph.atomic import directory_lock
from shardgraph.collate import buffer

pytestmark = [pytest.mark.torture, linux]

COUNT = 120


@pytest.fixture(scope="module", params=[None, "gzip"], ids=["plain", "gzip"])
def root(request, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    return write(root, COUNT, shard_size=9_000, compression=request.param)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("plain"), COUNT, shard_size=9_000)


def check_epoch(loader: Any) -> None:
    """All graphs once, and right."""
    seen = []
    for batch in loader:
        numbers = batch.number.tolist()
        assert are_right(batch, numbers)
        seen += numbers
    assert sorted(seen) == [*range(COUNT)]


# Starting processes ------------------------------------------------------------------------------


def read_after_fork(dataset: sg.ShardedDataset, _: Any) -> None:
    for number in range(0, COUNT, 7):
        assert is_right(dataset[number], number)
    check_epoch(sg.GraphLoader(dataset, 16, shuffle=True))


@pytest.mark.torture(rounds=8)
def test_forked_while_threads_of_the_parent_read(root, rounds):
    """The parent has read, and goes on reading in threads, each instant a fork may come."""
    dataset = sg.ShardedDataset(root)
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            if not are_right(dataset.__getitems__(range(30)), [*range(30)]):
                wrong.append("many at once")
            if not is_right(dataset[77], 77):
                wrong.append("one")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        children = []
        for _ in rounds:
            time.sleep(rounds.rng.uniform(0, 0.005))
            children.append(Child(read_after_fork, dataset))
            if len(children) == 4:
                while children:
                    assert children.pop().end() == (0, "")
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    for child in children:
        assert child.end() == (0, "")
    assert wrong == []


@pytest.mark.torture(rounds=0.2)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("loader", [sg.GraphLoader, DataLoader])
def test_other_ways_to_start_workers_after_reading(root, method, loader, rounds):
    for _ in rounds:
        dataset = sg.ShardedDataset(root)
        assert is_right(dataset[7], 7)
        check_epoch(loader(dataset, 16, num_workers=2, multiprocessing_context=method))
        gc.collect()


# Limits ------------------------------------------------------------------------------------------


def make_many(base: Path, root: Path, count: int) -> Path:
    """A dataset whose ``count`` shards are copies of those of another."""
    manifest = sg.Manifest.read(base)
    root.mkdir()
    shards = []
    for number in range(count):
        entry = manifest.shards[number % len(manifest.shards)]
        shards.append(dataclasses.replace(entry, name=f"shard-{number:05d}.h5"))
        shutil.copyfile(base / entry.name, root / shards[-1].name)
    dataclasses.replace(manifest, shards=tuple(shards)).write(root)
    return root


def read_with_few_descriptors(root: Path, base: int, limit: int, say: Any) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    dataset = sg.ShardedDataset(root)
    for batch in sg.GraphLoader(dataset, 256, shuffle="window"):
        assert are_right(batch, [number % base for number in batch.number.tolist()])
    say(f"{dataset._pool.num_open} open")
    assert is_right(dataset[len(dataset) - 1], (len(dataset) - 1) % base)


@pytest.mark.torture(rounds=0.2)
@pytest.mark.parametrize("compression", [None, "gzip"], ids=["plain", "gzip"])
def test_five_thousand_shards_and_256_descriptors(tmp_path, compression, rounds):
    for number in rounds:
        read_many_shards(tmp_path / f"{number}", 5_000, 256, compression)


@pytest.mark.parametrize("compression", [None, "gzip"], ids=["plain", "gzip"])
def test_three_hundred_shards_and_100_descriptors(tmp_path, compression):
    read_many_shards(tmp_path, 300, 100, compression)


def read_many_shards(folder: Path, count: int, limit: int, compression: str | None) -> None:
    base = write(folder / "base", 4, shard_size=1, compression=compression)
    root = make_many(base, folder / "data", count)
    said = outcome(read_with_few_descriptors, root, 4, limit, seconds=240)
    assert said == f"{count} open"


def read_with_small_shm(root: Path, by_torch: bool, nbytes: int, say: Any) -> None:
    own_mounts()
    mount_tmpfs(Path("/dev/shm"), nbytes)
    if by_torch:
        buffer.can_share = lambda: False
    dataset = sg.ShardedDataset(root)[[*range(COUNT)] * 20]
    try:
        for batch in sg.GraphLoader(dataset, 10 * COUNT, num_workers=2):
            assert are_right(batch, [*range(COUNT)] * 10)
        del batch
        say("read")
    except (RuntimeError, OSError) as error:
        say(f"{type(error).__name__}: {error}".replace("\n", " "))
    gc.collect()
    if not by_torch:  # torch 2.13 forgets the file that it found no room for
        assert os.listdir("/dev/shm") == []


@pytest.mark.torture(rounds=1)
def test_a_small_dev_shm(plain, rounds):
    """Our own blocks do not lie there; where torch's must, the error says what is short."""
    if why := why_no_mounts():
        pytest.skip(why)
    for _ in rounds:
        nbytes = rounds.rng.randrange(1 << 16, 1 << 17, 4096)  # torch's semaphores take 40 kB
        assert outcome(read_with_small_shm, plain, False, nbytes) == "read"
        assert "shared memory" in outcome(read_with_small_shm, plain, True, nbytes)
        assert outcome(read_with_small_shm, plain, True, 16 << 20) == "read"


# Signals -----------------------------------------------------------------------------------------


def train_for_ever(root: Path, num_workers: int, prefetch: bool, work: float, say: Any) -> None:
    """Trains until Ctrl-C, and tells what is still there then: threads and shared memory."""
    try:
        own_mounts()
        mount_tmpfs(Path("/dev/shm"), 64 << 20)  # in which it is alone
        shm = Path("/dev/shm")
    except OSError:
        shm = None
    loader: Any = sg.GraphLoader(sg.ShardedDataset(root), 4, shuffle=True, num_workers=num_workers)
    if prefetch:
        loader = sg.DevicePrefetcher(loader, "cpu", depth=3)
    try:
        say("begin")
        while True:
            for batch in loader:
                assert are_right(batch, batch.number.tolist())
                time.sleep(work)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    say(f"{threads_left()} {[] if shm is None else os.listdir(shm)}")


def threads_left() -> list[threading.Thread]:
    """Those beside the main one that do not end: torch's own take an instant."""
    give_up = time.monotonic() + 8
    while (found := threading.enumerate()[1:]) and time.monotonic() < give_up:
        time.sleep(0.01)
    return found


@pytest.mark.torture(rounds=1)
@pytest.mark.parametrize("prefetch", [False, True], ids=["loader", "prefetcher"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ctrl_c_of_a_training(plain, num_workers, prefetch, rounds):
    for number in rounds:
        child = Child(train_for_ever, plain, num_workers, prefetch, 0.01 * (number % 2))
        assert child.line() == "begin"
        time.sleep(rounds.rng.uniform(0.0, 0.3))
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to the workers too
        ended = child.end()
        assert ended == (0, "[] []"), ended[1]
        assert child.left(10) == []
        with directory_lock(plain):
            pass  # it holds no lock


def fork_with_ctrl_c(root: Path, prefetch: bool, say: Any) -> None:
    """Presses it at each fork, where Python swallows what a handler raises."""
    os.register_at_fork(before=partial(signal.raise_signal, signal.SIGINT))
    loader: Any = sg.GraphLoader(sg.ShardedDataset(root), 4, num_workers=1)
    try:
        iter(sg.DevicePrefetcher(loader, "cpu") if prefetch else loader)
    except KeyboardInterrupt:
        gc.collect()
        say(f"{multiprocessing.active_children()} {threads_left()}")


@pytest.mark.parametrize("prefetch", [False, True], ids=["loader", "prefetcher"])
def test_ctrl_c_in_the_instant_of_a_fork(plain, prefetch):
    child = Child(fork_with_ctrl_c, plain, prefetch)
    assert child.end() == (0, "[] []")
    assert child.left(10) == []


def train_and_lose_a_worker(root: Path, options: dict[str, Any], after: int, say: Any) -> None:
    loader = sg.GraphLoader(sg.ShardedDataset(root), 2, num_workers=2, seed=1, **options)
    batches = sg.DevicePrefetcher(loader, "cpu")
    try:
        for step, batch in enumerate(batches):
            assert are_right(batch, batch.number.tolist())
            time.sleep(0.002)
            if step == after:
                victim = multiprocessing.active_children()[step % 2]
                os.kill(victim.pid, signal.SIGKILL)
                say(f"{victim.pid}")
    except RuntimeError as error:
        say(f"{error}".replace("\n", " "))
    else:
        say("no error")
    del batch
    if not loader.persistent_workers:  # torch keeps those, dead ones too
        loader.set_epoch(0)
        check_epoch(batches)  # the next loop is a whole one


@pytest.mark.torture(rounds=1)
def test_a_worker_killed_within_an_epoch(plain, rounds):
    for number in rounds:
        options = {"persistent_workers": number % 2 == 1, "shuffle": True}
        after = rounds.rng.randrange(30)
        said = outcome(train_and_lose_a_worker, plain, options, after, seconds=30).splitlines()
        assert f"DataLoader worker (pid {said[0]}) is killed by signal: Killed" in said[1] or (
            f"cannot open a batch of worker {said[0]}" in said[1]
        )


def train_with_a_bus_error(root: Path, say: Any) -> None:
    dataset = sg.ShardedDataset(root)
    loader = sg.GraphLoader(dataset, 8, num_workers=1, worker_init_fn=die_of_a_bus_error)
    try:
        list(loader)
    except (RuntimeError, sg.CorruptShardError) as error:
        say(f"{type(error).__name__}: {error}")


def die_of_a_bus_error(_: int) -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def test_a_worker_that_dies_of_a_truncated_shard(tmp_path):
    root = write(tmp_path / "data", COUNT, shard_size=9_000)
    assert "RuntimeError: DataLoader worker" in outcome(train_with_a_bus_error, root)
    os.truncate(root / "shard-00002.h5", 5_000)
    said = outcome(train_with_a_bus_error, root)
    assert "CorruptShardError: " in said
    assert "shard-00002.h5 has 5000 bytes, the manifest says" in said
