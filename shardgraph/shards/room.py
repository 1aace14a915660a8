"""How much the page cache may hold: the machine's memory, and limits set on this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def page_cache_room(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that the page cache may grow to, what it holds already included.

    The least of what the machine and each memory cgroup above this process have left beside memory
    that is no cache. ``sys.maxsize`` where the system does not tell.
    """
    rooms = [sys.maxsize]
    available = _figures(proc / "meminfo").get("MemAvailable:")
    if available is not None:
        rooms.append(available * 1024)
    for limit_name, usage_name, prefix, group in _groups(proc, cgroups):
        limit, usage = _number(group / limit_name), _number(group / usage_name)
        if limit is not None and usage is not None:
            stat = _figures(group / "memory.stat")
            cached = sum(stat.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
            rooms.append(limit - usage + cached)
    return max(0, min(rooms))


def _groups(proc: Path, cgroups: Path) -> Iterator[tuple[str, str, str, Path]]:
    """Memory cgroups of this process and those above, with the names of their files.

    Where a container shows its group as the root, the path of the host is not there; the root is.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = "memory.max", "memory.current", ""
            roots = [cgroups, cgroups / "unified"]
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
            roots = [cgroups / "memory"]
        else:
            continue
        for root in roots:
            group = root / path.lstrip("/")
            yield *names, group
            yield from ((*names, above) for above in group.parents if above.is_relative_to(root))


def _number(path: Path) -> int | None:
    """The number in a file; None for "max" or where there is no such file."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _figures(path: Path) -> dict[str, int]:
    """The first two words of each line: a name and a number."""
    lines = (line.split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
