"""Files that exist whole or not at all; digests; the lock of a directory."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from shardgraph.atomic import (
    LockedError,
    digest64,
    digest128,
    directory_lock,
    file_digest,
    full_disk_errno,
    needing_room,
    publishing,
    write_text,
)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_publishes_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with publishing(path) as temporary:
        temporary.write_bytes(b"new")
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".file.tmp-")
        assert names(tmp_path) == [temporary.name]
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("stop")])
def test_an_exception_publishes_nothing(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with publishing(path) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(type(error), match=str(error)):
        write()
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"\.file\.tmp-"), publishing(tmp_path / "file"):
        pass
    assert names(tmp_path) == []


def test_write_text_replaces_exactly(tmp_path: Path) -> None:
    path = tmp_path / "text"
    write_text(path, "first\n")
    write_text(path, "zweite ü\nlines\n")
    assert path.read_bytes() == "zweite ü\nlines\n".encode()
    assert names(tmp_path) == ["text"]


def test_digests(tmp_path: Path) -> None:
    # What xxHash gives for no input.
    assert digest64(b"") == 0x2D06800538D394C2
    assert digest128(b"") == "99aa06d3014798d86001c324468d497f"
    data = np.random.default_rng(0).bytes((3 << 20) + 5)
    path = tmp_path / "file"
    path.write_bytes(data)
    assert file_digest(path) == digest128(data)
    array = np.frombuffer(data[:400], np.int32).reshape(10, 10)
    assert digest64(array) == digest64(data[:400])
    assert digest64(array[3:5]) == digest64(data[120:200])


# Room --------------------------------------------------------------------------------------------


def test_room_is_checked_before_and_leaves_nothing(tmp_path: Path) -> None:
    with needing_room(tmp_path / "file", 1000):
        assert names(tmp_path) == []
    began = []
    message = r"1,152,921,504,606,846,976 bytes are needed, .* are free there"
    with pytest.raises(OSError, match=message), needing_room(tmp_path / "file", 1 << 60):
        began.append(True)
    assert not began
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
@pytest.mark.parametrize("in_words", [False, True])
def test_a_disk_that_fills_up(number: int, in_words: bool, tmp_path: Path) -> None:
    error = (
        RuntimeError(f"Unable to write (errno = {number}, x)") if in_words else OSError(number, "")
    )
    room = needing_room(tmp_path / "file", 10)
    with pytest.raises(OSError, match="about 10 bytes are needed") as caught, room:
        raise error
    assert caught.value.errno == number
    assert caught.value.filename == str(tmp_path / "file")
    assert caught.value.__cause__ is error


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="not yours"), needing_room(tmp_path / "file", 10):
        raise PermissionError(errno.EACCES, "not yours")
    assert full_disk_errno(ValueError("x")) is None
    assert full_disk_errno(RuntimeError("errno = 5")) is None


# Lock --------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from shardgraph.atomic import directory_lock
with directory_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(directory: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def release(process: "subprocess.Popen[str]") -> None:
    process.communicate("")
    assert process.returncode == 0


def test_a_process_does_not_lock_twice(tmp_path: Path) -> None:
    again = directory_lock(tmp_path / "x" / "..")
    with directory_lock(tmp_path):
        with pytest.raises(LockedError, match=f"this process .pid {os.getpid()}."), again:
            pass
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
    assert (tmp_path / ".lock").read_text() == ""


def test_another_process_holds_it(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        message = f"another process .pid {process.pid}.; wait"
        with pytest.raises(LockedError, match=message), directory_lock(tmp_path):
            pass
    finally:
        release(process)
    with directory_lock(tmp_path):
        pass


def test_a_killed_holder_leaves_it_free(tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.kill()
    process.communicate()
    assert (tmp_path / ".lock").read_text() == str(process.pid)
    with directory_lock(tmp_path):
        pass


def test_waits_for_it(tmp_path: Path) -> None:
    process = holder(tmp_path)
    began = time.monotonic()
    timer = threading.Timer(0.3, release, [process])
    timer.start()
    with directory_lock(tmp_path, wait=True):
        assert time.monotonic() - began >= 0.3
    timer.join()


def test_an_error_inside_releases_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="inside"), directory_lock(tmp_path):
        raise ZeroDivisionError("inside")
    with directory_lock(tmp_path):
        pass


def test_directories_made_for_nothing_are_removed(tmp_path: Path) -> None:
    with directory_lock(tmp_path / "a/b/c"):
        assert (tmp_path / "a/b/c/.lock").exists()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    with directory_lock(tmp_path / "a/b/c"):
        (tmp_path / "a/b/file").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "file"]
    with directory_lock(tmp_path / "a/b/c"):
        (tmp_path / "a/b/c/file").touch()
    assert sorted(path.name for path in (tmp_path / "a/b/c").iterdir()) == [".lock", "file"]


def test_threads_hold_it_one_after_the_other(tmp_path: Path) -> None:
    """Also where the one before removes the directory that it made."""
    inside, most = [], []

    def hold() -> None:
        with directory_lock(tmp_path / "a/b", wait=True):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 6
    assert list(tmp_path.iterdir()) == []


def test_a_thread_that_holds_it_does_not_wait_for_itself(tmp_path: Path) -> None:
    again = directory_lock(tmp_path, wait=True)
    with (
        directory_lock(tmp_path),
        pytest.raises(LockedError, match="is being written by this process"),
        again,
    ):
        pass
