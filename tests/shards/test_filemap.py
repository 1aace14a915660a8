"""A mapped file: its bytes, its lifetime, and what is asked to be read ahead."""

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardgraph.shards.filemap import PAGE, PIECE, FileMap, page_pieces

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(3).bytes(3 * PAGE + 17))
    return path


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def num_mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_bytes(file: Path) -> None:
    found = FileMap(file)
    assert found.nbytes == 3 * PAGE + 17
    assert found.array.dtype == np.uint8
    assert found.array.tobytes() == file.read_bytes()


def test_read_only(file: Path) -> None:
    array = FileMap(file).array
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    found = FileMap(tmp_path / "empty")
    found.advise_random()
    found.will_need(np.array([0]), np.array([10]))
    assert found.array.tolist() == []


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        FileMap(tmp_path / "nothing")


def test_a_view_outlives_its_map_and_its_file(file: Path) -> None:
    data = file.read_bytes()
    view = FileMap(file).array[PAGE - 3 : PAGE + 5].view(np.int64)
    gc.collect()
    file.unlink()
    assert view.tobytes() == data[PAGE - 3 : PAGE + 5]


@linux
def test_unmapped_with_the_last_view(file: Path) -> None:
    found = FileMap(file)
    view = found.array[10:20][2:4]
    assert num_mappings(file) == 1
    del found
    gc.collect()
    assert num_mappings(file) == 1
    del view
    gc.collect()
    assert num_mappings(file) == 0


@linux
def test_many_maps_hold_no_descriptor(file: Path) -> None:
    first = FileMap(file)
    first.will_need(np.array([0]), np.array([PAGE]))  # opens what is opened once a process
    before = num_descriptors()
    maps = [FileMap(file) for _ in range(200)]
    for found in maps:
        found.advise_random()
        found.will_need(np.array([5]), np.array([PAGE]))
        found.is_cached(np.array([5]))
    assert num_descriptors() == before


@linux
def test_survives_a_fork(file: Path) -> None:
    found = FileMap(file)
    child = os.fork()
    if child == 0:
        failed = True
        try:
            found.will_need(np.array([0]), np.array([PAGE]))
            failed = found.array.tobytes() != file.read_bytes()
        finally:
            os._exit(failed)
    assert os.waitpid(child, 0)[1] == 0
    assert found.array.tobytes() == file.read_bytes()


def test_advice_beyond_the_end_is_harmless(file: Path) -> None:
    found = FileMap(file)
    found.advise_random()
    found.will_need(np.array([0, 5 * PAGE, 7]), np.array([99 * PAGE, 6 * PAGE, 7]))
    found.will_need(np.empty(0, np.int64), np.empty(0, np.int64))
    assert found.array.tobytes() == file.read_bytes()


def test_bytes_are_read_again_after_they_were_let_go(file: Path) -> None:
    found = FileMap(file)
    before = found.array.tobytes()
    found.forget()
    found.let_go(np.array([0, 5, 9 * PAGE]), np.array([PAGE + 1, 5, 99 * PAGE]))
    assert found.array.tobytes() == before == file.read_bytes()


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot tell")
def test_what_was_just_read_is_cached(file: Path) -> None:
    found = FileMap(file)
    assert found.array.sum() > 0
    if not found.is_cached(np.array([0])):
        pytest.skip("this file system cannot tell")
    assert found.is_cached(np.array([0, PAGE, 3 * PAGE + 16]))
    assert not found.is_cached(np.array([0, 9 * PAGE]))  # nothing to read there


RANGES = st.lists(st.tuples(st.integers(0, 300 * PAGE), st.integers(-5, 3 * PIECE)), max_size=12)


@given(RANGES)
def test_pieces_cover_each_wanted_page_once(ranges: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in ranges], np.int64)
    stops = starts + np.array([length for _, length in ranges], np.int64)
    first, nbytes = page_pieces(starts, stops)
    wanted = set()
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if start < stop:
            wanted.update(range(start // PAGE, (stop - 1) // PAGE + 1))
    pages = [
        page
        for begin, length in zip(first.tolist(), nbytes.tolist(), strict=True)
        for page in range(begin // PAGE, (begin + length) // PAGE)
    ]
    assert pages == sorted(wanted)
    assert (first % PAGE == 0).all()
    assert (nbytes % PAGE == 0).all()
    assert (nbytes <= PIECE).all()
