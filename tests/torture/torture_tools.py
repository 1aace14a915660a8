"""What the attacks share: processes to be killed, graphs that tell if they are right, mounts."""

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest
import torch
from torch_geometric.data import Data

import shardgraph as sg

linux = pytest.mark.skipif(sys.platform != "linux", reason="attacks as Linux allows")


# Processes ---------------------------------------------------------------------------------------


class Child:
    """A forked process, leader of a session of its own, that runs ``work(*args, say)``.

    It ends with status 0, or 1 if ``work`` raised; what it says comes line by line.
    """

    running: ClassVar[dict[int, "Child"]] = {}
    """Those not waited for yet, by process id."""

    def __init__(self, work: Callable[..., Any], *args: Any) -> None:
        self._from, to = os.pipe()
        self._text = b""
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                faulthandler.register(signal.SIGUSR2, to)  # its workers', too
                os.setsid()
                os.close(self._from)
                torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
                signal.signal(signal.SIGINT, signal.default_int_handler)
                work(*args, lambda text: os.write(to, f"{text}\n".encode()))
                status = 0
            except BaseException:  # noqa: BLE001  # all that a child can do is tell
                os.write(to, traceback.format_exc().encode())
            finally:
                os._exit(status)
        os.close(to)
        self.running[self.pid] = self

    def line(self, seconds: float = 30.0) -> str:
        """The next line that it says."""
        give_up = time.monotonic() + seconds
        while b"\n" not in self._text:
            self._read(max(0.0, give_up - time.monotonic()))
            if time.monotonic() > give_up:
                self.fail(f"it said nothing for {seconds} s")
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def _read(self, seconds: float) -> bool:
        ready = select.select([self._from], [], [], seconds)[0]
        more = os.read(self._from, 1 << 16) if ready else b""
        self._text += more
        return bool(more)

    def has_ended(self, seconds: float) -> bool:
        """Waits so long for its end."""
        give_up = time.monotonic() + seconds
        while self.pid in self.running:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
                del self.running[self.pid]
                while self._read(0):
                    pass
                os.close(self._from)
            elif time.monotonic() > give_up:
                return False
            else:
                self._read(0.01)
        return True

    def end(self, seconds: float = 30.0) -> tuple[int, str]:
        """Its exit status (-N: ended by signal N), and the rest of what it said."""
        if not self.has_ended(seconds):
            self.fail(f"it did not end within {seconds} s")
        return self._status, self._text.decode().rstrip("\n")

    def kill(self) -> None:
        """SIGKILL to it alone, as an operating system short of memory does."""
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def fail(self, why: str) -> NoReturn:
        """Fails the test with what it said and where all its threads and workers are."""
        try:
            os.killpg(self.pid, signal.SIGUSR2)
        except ProcessLookupError:  # it does not lead a group yet
            os.kill(self.pid, signal.SIGUSR2)
        while self._read(1.0):
            pass
        self.kill_session()
        pytest.fail(f"{why}; so far:\n{self._text.decode()}")

    def kill_session(self) -> None:
        """SIGKILL to it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.has_ended(5)

    def left(self, seconds: float) -> list[str]:
        """Processes of its session that are still there after so long."""
        give_up = time.monotonic() + seconds
        while (found := _of_session(self.pid)) and time.monotonic() < give_up:
            time.sleep(0.05)
        return found


def _of_session(session: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name) state parent group session ...; the name may hold anything
            state, _, _, of, *_ = stat.read_text().rpartition(")")[2].split()
            if int(of) == session and state not in "ZX":
                found.append(stat.parent.name)
    return found


def outcome(work: Callable[..., Any], *args: Any, seconds: float = 30.0) -> str:
    """What a child says that must end well."""
    status, said = Child(work, *args).end(seconds)
    assert status == 0, f"exit status {status}: {said}"
    return said


# Graphs ------------------------------------------------------------------------------------------


def graph(number: int) -> Data:
    """A graph all of whose values tell its number, and none of whose values is 0."""
    n = 1 + number % 5
    return Data(
        x=torch.full((n, 16), number + 1.0),
        edge_index=torch.full((2, 1 + number % 4), n - 1),
        z=torch.full((n,), number + 1),
        number=number,
        name=f"graph {number}",
    )


def write(path: Path, count: int, **options: Any) -> Path:
    """A dataset of ``count`` of these graphs."""
    with sg.DatasetWriter(path, **options) as writer:
        for number in range(count):
            writer.write(graph(number))
    return path


def is_right(data: Any, number: int) -> bool:
    """Whether a graph is what `graph` made."""
    expected = graph(number).to_dict()
    found = data.to_dict()
    return found.keys() == expected.keys() and all(
        torch.equal(found[key], value) if isinstance(value, torch.Tensor) else found[key] == value
        for key, value in expected.items()
    )


def are_right(batch: Any, numbers: list[int]) -> bool:
    """Whether a batch holds these graphs and nothing else."""
    graphs = batch.to_data_list() if hasattr(batch, "to_data_list") else batch
    return len(graphs) == len(numbers) and all(map(is_right, graphs, numbers))


# Mounts ------------------------------------------------------------------------------------------

_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18


def own_mounts() -> None:
    """From here on this process, a child, mounts for itself alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS))
    _mount(None, Path("/"), None, _MS_REC | _MS_PRIVATE)


def mount_tmpfs(path: Path, nbytes: int, *, again: bool = False) -> None:
    """A file system in memory with room for so many bytes; ``again`` changes the size of one."""
    _mount("tmpfs", path, "tmpfs", _MS_REMOUNT if again else 0, f"size={nbytes}")


def make_read_only(path: Path) -> None:
    """Nobody, root included, can write below ``path`` any more."""
    _mount(str(path), path, None, _MS_BIND)
    _mount(None, path, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _mount(source: str | None, path: Path, kind: str | None, flags: int, data: str = "") -> None:
    names = [None if name is None else os.fsencode(name) for name in (source, path, kind)]
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.mount(*names, ctypes.c_ulong(flags), data.encode()))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def why_no_mounts() -> str | None:
    """Why this process may not mount, or None."""

    def attempt(say: Callable[[str], Any]) -> None:
        try:
            own_mounts()
            mount_tmpfs(Path("/mnt"), 1 << 16)
        except OSError as error:
            say(f"may not mount a file system here: {error.strerror}")

    return outcome(attempt) or None
