"""Files that exist whole or not at all: temporary name, fsync, replace; digests; locks."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

TEMPORARY = ".tmp-"
"""What the names of unfinished files contain."""

UNFINISHED = ".conversion"
"""Name of the folder, in a dataset's own, in which a conversion keeps what it has finished."""


@contextlib.contextmanager
def publishing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``; when the block ends, its file is durable as ``path``.

    An exception removes the temporary file and publishes nothing.
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replaces ``path`` by a file with that text, durably and at once."""
    with publishing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def sync_directory(path: Path) -> None:
    """Makes renames within a directory durable, where the system can (not on Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})


@contextlib.contextmanager
def needing_room(path: Path, nbytes: int) -> Iterator[None]:
    """Checks that a file of that size has room at ``path`` before the block writes it.

    HDF5 must not meet a full disk: it can leave a valid but smaller file, and a process that ends
    in a crash (h5py issue 914). What fails in the block for want of room after all, because others
    write there too, gives the same error.

    Raises:
        OSError: naming path, bytes needed and bytes free, if the disk is full, or a quota or the
            process's own limit is reached.
    """
    try:
        _reserve(path, nbytes)
        yield
    except (OSError, RuntimeError) as error:
        number = full_disk_errno(error)
        if number is None:
            raise
        free = shutil.disk_usage(path.parent).free
        raise OSError(
            number,
            f"{os.strerror(number)}: about {nbytes:,} bytes are needed, {free:,} are free there; "
            "make room, or write elsewhere",
            str(path),
        ) from error


def full_disk_errno(error: BaseException) -> int | None:
    """The error number if an error says that there is no room; HDF5 says it in words only."""
    number = getattr(error, "errno", None)
    if number is None and (match := re.search(r"errno = (\d+)", str(error))):
        number = int(match[1])
    return number if number in _FULL else None


def _reserve(path: Path, nbytes: int) -> None:
    """Raises OSError if there is no room for a file of that size."""
    if shutil.disk_usage(path.parent).free < nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    trial = path.with_name(f".{path.name}{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.posix_fallocate(descriptor, 0, max(1, nbytes))
    except OSError as error:
        if error.errno in _FULL:  # others say that this file system cannot tell
            raise
    finally:
        os.close(descriptor)
        trial.unlink()


def file_digest(path: Path) -> str:
    """xxh3_128 of a file's bytes, hexadecimal."""
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def digest128(data: bytes) -> str:
    """xxh3_128 of some bytes, hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


def digest64(data: Any) -> int:
    """xxh3_64 of the bytes of a C-contiguous buffer, such as an array's."""
    return xxhash.xxh3_64_intdigest(data)


# Directories locked, by the process that did, with the thread: a POSIX lock does not exclude its
# own process, and is not inherited by a forked one.
_HELD: dict[tuple[int, Path], int] = {}
_CHANGED = threading.Condition()


class LockedError(OSError):
    """Somebody else is writing there."""


@contextlib.contextmanager
def directory_lock(directory: Path, *, wait: bool = False) -> Iterator[None]:
    """Holds the one lock of a directory being written; ``.lock`` in it names the holder's pid.

    The system drops the lock when its holder dies, however it dies, so a stale file never blocks.
    The directory and its parents are made if absent; those made here are removed again if the block
    has left nothing in them. Else the file stays, empty.

    Raises:
        LockedError: if another process, or another thread of this one, holds it and not ``wait``;
            or this thread itself.
    """
    directory = directory.resolve()
    with _held_here(directory, wait=wait):
        descriptor, made = _locked(directory, wait=wait)
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
            try:
                yield
            finally:
                os.ftruncate(descriptor, 0)
                _remove_empty(made)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _held_here(directory: Path, *, wait: bool) -> Iterator[None]:
    """Keeps the other threads of this process out."""
    key = (os.getpid(), directory)
    with _CHANGED:
        while key in _HELD:
            if not wait or _HELD[key] == threading.get_ident():
                raise LockedError(
                    f"{directory} is being written by this process (pid {os.getpid()}) already"
                )
            _CHANGED.wait()
        _HELD[key] = threading.get_ident()
    try:
        yield
    finally:
        with _CHANGED:
            del _HELD[key]
            _CHANGED.notify_all()


def _locked(directory: Path, *, wait: bool) -> tuple[int, list[Path]]:
    """The descriptor of the lock file, locked, and the directories made for it, innermost first."""
    path = directory / ".lock"
    while True:
        made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _acquire(descriptor, wait=wait):
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise LockedError(
                f"{directory} is being written by another process (pid {holder}); "
                "wait for it to end, or stop it"
            )
        # Its holder may have removed it meanwhile: two would lock two files of one name.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor, made
        os.close(descriptor)


def _remove_empty(directories: list[Path]) -> None:
    """Removes directories, innermost first, up to the first that holds more than a lock."""
    for directory in directories:
        try:
            if {path.name for path in directory.iterdir()} - {".lock"}:
                return
            (directory / ".lock").unlink(missing_ok=True)
            directory.rmdir()
        except OSError:  # somebody else's file is new there, or (on Windows) the lock is open
            return


def _acquire(descriptor: int, *, wait: bool) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        mode = msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK  # type: ignore[attr-defined,unused-ignore]
        try:
            msvcrt.locking(descriptor, mode, 1)  # type: ignore[attr-defined,unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError):
        return False
    return True
