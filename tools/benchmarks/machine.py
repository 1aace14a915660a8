"""What a measurement runs on: versions, the page cache, and a limit on memory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torch_geometric", "h5py", "numpy", "lmdb", "litdata")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are compared; absent ones are left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def commit() -> str:
    """The commit of this checkout, with ``+`` if there are changes; "unknown" without git."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=10", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def hardware() -> dict[str, Any]:
    """Processor, cores and memory."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    memory = 0
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": model,
        "cores": num_cores(),
        "memory_gb": round(memory / 1e9, 1),
    }


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def files_of(directory: Path) -> list[Path]:
    """All files below a directory, in order."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def nbytes_of(directory: Path) -> int:
    """Bytes that the files below a directory take on disk."""
    block = 512  # the unit of st_blocks, whatever the file system's own
    stats = (path.stat() for path in files_of(directory))
    return sum(getattr(stat, "st_blocks", -(-stat.st_size // block)) * block for stat in stats)


def read_through(directory: Path, *, seconds: float | None = None) -> tuple[int, float]:
    """Reads all files in sequence, 1 MiB at a time; returns bytes and seconds.

    Args:
        directory: What to read.
        seconds: When to stop; None reads all.
    """
    buffer = bytearray(1 << 20)
    total = 0
    start = time.perf_counter()
    for path in files_of(directory):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
                if seconds is not None and time.perf_counter() - start > seconds:
                    return total, time.perf_counter() - start
    return total, time.perf_counter() - start


def drop_cache(directory: Path, *, everything: bool) -> str:
    """Empties the page cache and says how.

    Args:
        directory: Whose files are dropped.
        everything: Whether to drop the whole machine's cache, directory entries included, where
            this process may (root on Linux); else the files one by one.
    """
    os.sync()
    if everything:
        with contextlib.suppress(OSError):
            Path("/proc/sys/vm/drop_caches").write_text("3\n")
            return "dropped (whole machine)"
    if not hasattr(os, "posix_fadvise"):
        return "NOT dropped (this system has no call for it)"
    for path in files_of(directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return "dropped (file by file)"


@contextlib.contextmanager
def memory_limit(nbytes: int) -> Iterator[tuple[Path | None, str]]:
    """Makes a memory cgroup below this process's own, or the nearest above it that can have one.

    Yields the file that a process writes its id to, to be limited, page cache included (None where
    there is no limit), and a sentence that says what was set.
    """
    group = None
    reason = "there is no memory cgroup here"
    for parent, limit_name in _group_parents():
        candidate = parent / f"shardgraph-bench-{os.getpid()}"
        try:
            candidate.mkdir()
        except OSError as error:
            reason = f"a memory cgroup cannot be made: {error.strerror}"
            continue
        try:
            (candidate / limit_name).write_text(str(nbytes))
        except OSError as error:
            reason = f"{limit_name} cannot be set: {error.strerror}"
            candidate.rmdir()
            continue
        group = candidate
        break
    if group is None:
        yield None, f"memory NOT limited ({reason})"
        return
    try:
        yield group / "cgroup.procs", f"memory limited to {nbytes / 1e6:.0f} MB by a cgroup"
    finally:
        _remove(group)


def _group_parents() -> Iterator[tuple[Path, str]]:
    """Directories below which a memory cgroup may be made, nearest first, and the limit's file."""
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return
    for kind, limit_name in (("cgroup", "memory.limit_in_bytes"), ("cgroup2", "memory.max")):
        for _, mount, mount_kind, options, *_ in mounts:
            if mount_kind != kind or (kind == "cgroup" and "memory" not in options.split(",")):
                continue
            for line in own:
                _, controllers, path = line.split(":", 2)
                if controllers == "" if kind == "cgroup2" else "memory" in controllers.split(","):
                    below = Path(path.lstrip("/"))
                    for part in (below, *below.parents):
                        yield Path(mount) / part, limit_name


def _remove(group: Path) -> None:
    for _ in range(50):  # the kernel takes a moment to let go of the last process
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
