"""A mapped file that was cut short or zeroed at its end is noticed, without reading its map."""

import os
from pathlib import Path

import numpy as np
import pytest

from shardgraph.shards.filemap import PAGE, FileMap, libc
from shardgraph.shards.tails import Tails

pytestmark = pytest.mark.skipif(
    os.name != "posix" or not hasattr(libc(), "process_vm_writev"), reason="the system cannot tell"
)


def mapped(path: Path, data: bytes) -> FileMap:
    path.write_bytes(data)
    return FileMap(path)


def tails_of(*files: FileMap, count: int | None = None) -> Tails:
    tails = Tails(count or len(files))
    for number, file in enumerate(files):
        tails.add(number, file)
    return tails


CUT = {
    "to nothing": 0,
    "within an earlier page": PAGE + 5,
    "to whole pages": 2 * PAGE,
    "by a byte": 2 * PAGE + 99,
}


@pytest.mark.parametrize("nbytes", CUT.values(), ids=CUT.keys())
@pytest.mark.parametrize("restored", [False, True], ids=["shorter", "of its old length again"])
def test_a_file_that_was_cut(tmp_path, nbytes, restored):
    files = [mapped(tmp_path / str(number), b"x" * (2 * PAGE + 100)) for number in range(5)]
    tails = tails_of(*files)
    everything, others = np.arange(5), np.array([0, 4, 4, 1])
    assert tails.first_changed(everything) is None
    os.truncate(files[3].path, nbytes)
    if restored:
        os.truncate(files[3].path, 2 * PAGE + 100)
    assert tails.first_changed(everything) == 3
    assert tails.first_changed(np.array([3])) == 3
    assert tails.first_changed(others) is None
    assert [tails.has_changed(number) for number in range(5)] == [False, False, False, True, False]


def test_zeros_at_the_end_may_be_cut_off(tmp_path):
    file = mapped(tmp_path / "a", b"x" * PAGE + b"yz" + bytes(50))
    tails = tails_of(file)
    os.truncate(file.path, PAGE + 2)
    assert not tails.has_changed(0)
    assert bytes(file.array[-52:]) == b"yz" + bytes(50)  # what a reader sees is what was there
    os.truncate(file.path, PAGE + 1)
    assert tails.has_changed(0)


@pytest.mark.parametrize("length", [1, PAGE, PAGE + 7])
def test_a_last_page_of_zeros(tmp_path, length):
    file = mapped(tmp_path / "a", b"x" * PAGE + bytes(length))
    tails = tails_of(file)
    assert tails.first_changed(np.zeros(1, np.int64)) is None
    os.truncate(file.path, PAGE // 2)
    assert tails.first_changed(np.zeros(1, np.int64)) == 0


def test_more_files_than_the_kernel_takes_at_once(tmp_path):
    first, second = (mapped(tmp_path / name, b"x" * 10) for name in "ab")
    tails = tails_of(*[first] * 1500, second, *[first] * 900, count=3000)
    everything = np.arange(2401)
    assert tails.first_changed(everything) is None
    os.truncate(second.path, 3)
    assert tails.first_changed(everything) == 1500
    assert tails.first_changed(everything[:1500]) is None
    assert tails.first_changed(everything[::-1][:2000]) == 1500


def test_where_the_call_is_not_allowed_nothing_is_said(tmp_path, monkeypatch):
    file = mapped(tmp_path / "a", b"x" * 10)
    tails = tails_of(file)
    os.truncate(file.path, 3)
    monkeypatch.setattr(os, "getpid", lambda: 1 << 22)  # no process has this id: ESRCH
    assert not tails.has_changed(0)
    monkeypatch.undo()
    assert not tails.has_changed(0)  # and it is not tried again
