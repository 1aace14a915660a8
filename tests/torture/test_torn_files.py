"""Shards that are cut, zeroed, flipped or replaced: an error that names the shard, or right graphs.

Never a wrong graph, never the end of the process. What plain reading cannot see, since it computes
no digest, `verify` finds.
"""

import faulthandler
import os
import re
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torture_tools import Child, are_right, is_right, linux, outcome, write

import shardgraph as sg

pytestmark = [pytest.mark.torture, linux]

COUNT, SHARDS = 120, 4
OUR_ERRORS = (sg.ShardGraphError, IndexError, ValueError)


@pytest.fixture(scope="module", params=[None, "gzip"], ids=["plain", "gzip"])
def whole(request, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    write(root, COUNT, shard_size=9_000, compression=request.param)
    assert len(sg.Manifest.read(root).shards) == SHARDS
    return root


@pytest.fixture
def root(whole, tmp_path) -> Path:
    """A copy to be damaged; `mend` makes it whole again."""
    return Path(shutil.copytree(whole, tmp_path / "data"))


def mend(whole: Path, root: Path) -> None:
    for path in whole.glob("*.h5"):
        shutil.copy(path, root / path.name)


# Each reads the whole dataset one way, and tells whether all that it got is right.


def one_by_one(dataset: sg.ShardedDataset) -> bool:
    return all(is_right(dataset[number], number) for number in range(COUNT))


def many_at_once(dataset: sg.ShardedDataset) -> bool:
    return are_right(dataset.__getitems__(range(COUNT)), [*range(COUNT)])


def in_batches(dataset: sg.ShardedDataset) -> bool:
    batches = list(sg.GraphLoader(dataset, 32, shuffle=True))
    return all(are_right(batch, batch.number.tolist()) for batch in batches)


def sizes_only(dataset: sg.ShardedDataset) -> bool:
    sizes, numbers = dataset.sizes, np.arange(COUNT)
    right = (sizes.num_nodes == 1 + numbers % 5) & (sizes.num_edges == 1 + numbers % 4)
    return bool(right.all())


READERS = (one_by_one, many_at_once, in_batches, sizes_only)


def read_damaged(root: Path, read: Any, when: str, damage: Any, say: Any) -> None:
    """Damages a dataset before it is opened, once it is, or once all was read; reads it again."""
    if when == "closed":
        damage()
    dataset = sg.ShardedDataset(root)
    if when == "mapped":
        assert all(each(dataset) for each in READERS)
    if when != "closed":
        damage()
    try:
        right = read(dataset)
    except sg.CorruptShardError as error:
        say(f"{type(error).__name__}: {error}")
    else:
        say("right" if right else "wrong")


WHEN = pytest.mark.parametrize("when", ["closed", "open", "mapped"])


@pytest.mark.torture(rounds=10)
@WHEN
def test_a_truncated_shard_is_named(whole, root, when, rounds, record_property):
    named = 0
    for number in rounds:
        path = root / f"shard-{rounds.rng.randrange(SHARDS):05d}.h5"
        nbytes = rounds.rng.randrange(path.stat().st_size)
        said = outcome(
            read_damaged,
            *(root, READERS[number % len(READERS)], when),
            lambda path=path, nbytes=nbytes: os.truncate(path, nbytes),
        )
        # A map may lack no more than zeros, which end the file; then what is read is right.
        is_named = re.search(
            f"CorruptShardError: .*{path.name} has {nbytes} bytes, the manif", said
        )
        assert is_named or (when == "mapped" and said == "right"), said
        named += is_named is not None
        mend(whole, root)
    assert named > 0
    record_property("named", named)


@pytest.mark.torture(rounds=5)
@WHEN
def test_a_tail_of_zeros_ends_no_process_and_verify_names_the_shard(whole, root, when, rounds):
    for number in rounds:
        path = root / f"shard-{rounds.rng.randrange(SHARDS):05d}.h5"
        good = path.read_bytes()
        length = rounds.rng.randrange(1, len(good))

        def zero(path=path, length=length):
            with path.open("r+b") as file:
                file.seek(-length, os.SEEK_END)
                file.write(bytes(length))

        read = READERS[number % len(READERS)]
        said = outcome(read_damaged, root, read, when, zero)
        if when == "mapped":  # what was seen to be whole is noticed not to be any more
            assert f"{path.name} is not what it was when this process" in said or said == "right"
        else:  # zeros for values are values, to a reader that computes no digest
            assert f"{path.name}" in said or said in {"right", "wrong"}
        problems = sg.verify(root, level="full", workers=1)
        if path.read_bytes() != good:
            assert {problem.shard for problem in problems} == {path.name}
        mend(whole, root)


def read_all_ways(root: Path, say: Any) -> None:
    warnings.simplefilter("ignore")  # a flipped version is a newer one
    dataset = sg.ShardedDataset(root)
    for read in READERS:
        try:
            read(dataset)
        except OUR_ERRORS as error:
            say(type(error).__name__)
        else:
            say("read")


@pytest.mark.torture(rounds=8)
def test_a_flipped_bit_ends_no_process_and_verify_names_the_shard(whole, root, rounds):
    for _ in rounds:
        path = root / f"shard-{rounds.rng.randrange(SHARDS):05d}.h5"
        bad = bytearray(path.read_bytes())
        bad[rounds.rng.randrange(len(bad))] ^= 1 << rounds.rng.randrange(8)
        path.write_bytes(bad)
        said = outcome(read_all_ways, root).splitlines()
        assert len(said) == len(READERS)
        problems = sg.verify(root, level="full", workers=1)
        assert {problem.shard for problem in problems} == {path.name}
        mend(whole, root)


# While it is being read ---------------------------------------------------------------------------


def read_for_ever(root: Path, num_workers: int, say: Any) -> None:
    """Reads until there is an error; two wrong batches in a row are one too many."""
    faulthandler.disable()  # its report of a SIGBUS would go between pytest's lines
    loader = sg.GraphLoader(sg.ShardedDataset(root), 16, shuffle=True, num_workers=num_workers)
    wrong = 0
    say("begin")
    while True:
        try:
            for batch in loader:
                wrong = 0 if are_right(batch, batch.number.tolist()) else wrong + 1
                if wrong > 1:
                    say("went on with wrong graphs")
                    return
        except sg.CorruptShardError as error:
            say(f"named: {error}")
            return


@pytest.mark.torture(rounds=3)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_truncated_at_a_random_moment(whole, root, num_workers, rounds, record_property):
    """Under workers always an error that names the shard; without, a signal in a rare instant."""
    signals = 0
    for _ in rounds:
        child = Child(read_for_ever, root, num_workers)
        assert child.line() == "begin"
        time.sleep(rounds.rng.uniform(0.02, 0.2))
        path = root / f"shard-{rounds.rng.randrange(SHARDS):05d}.h5"
        nbytes = rounds.rng.randrange(path.stat().st_size // 2)
        os.truncate(path, nbytes)
        status, said = child.end()
        if num_workers == 0 and status == -signal.SIGBUS:
            signals += 1
        else:
            assert status == 0, said
            assert said.startswith("named: ")
            assert path.name in said
        assert child.left(10) == []
        mend(whole, root)
    record_property("ended by SIGBUS", signals)


@pytest.mark.torture(rounds=4)
def test_a_shard_replaced_under_a_reader(whole, root, rounds):
    """Another file under its name: what is mapped stays what it was; what is not yet is refused."""
    for number in rounds:
        chosen = rounds.rng.randrange(SHARDS)
        path = root / f"shard-{chosen:05d}.h5"
        other = write(root.parent / f"other-{number}", 7, shard_size="1MB") / "shard-00000.h5"

        def replace(path=path, other=other):
            os.replace(other, path)

        read = READERS[number % len(READERS)]
        assert outcome(read_damaged, root, read, "mapped", replace) == "right"
        assert re.search(
            f"CorruptShardError: .*{path.name} has .* bytes, the manifest says .*replaced",
            outcome(read_damaged, root, read, "closed", lambda: None),
        )
        mend(whole, root)


@pytest.mark.torture(rounds=1)
def test_a_dataset_overwritten_under_its_readers(tmp_path, rounds):
    """Threads that open and read it again and again see one whole dataset or the other."""
    overwritten = 0
    for _ in rounds:
        root = write(tmp_path / "data", COUNT, shard_size=9_000, overwrite=True)
        stop, wrong = threading.Event(), []

        def read(stop=stop, wrong=wrong, root=root) -> None:
            while not stop.is_set():
                dataset = sg.ShardedDataset(root)
                try:
                    graphs = dataset.__getitems__(range(len(dataset)))
                except sg.FormatError as error:
                    if "holds another dataset than when it was opened; open" not in str(error):
                        wrong.append(str(error))
                else:
                    if not are_right(graphs, [*range(len(dataset))]):
                        wrong.append(graphs)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for count in range(30, 60, 3):
            write(root, count, shard_size=3_000, overwrite=True)
            overwritten += 1
        stop.set()
        for reader in readers:
            reader.join()
        assert wrong == []
    assert overwritten
