import sys
from pathlib import Path

import pytest

from shardgraph.shards.room import page_cache_room

GB = 1 << 30


def make(root: Path, files: dict[str, object]) -> tuple[Path, Path]:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root / "proc", root / "cgroup"


MEMORY = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {8 * GB // 1024} kB"}


def test_here_it_is_a_number_of_bytes():
    assert page_cache_room() > 1 << 20


def test_a_system_that_does_not_tell_has_no_end(tmp_path):
    assert page_cache_room(*make(tmp_path, {})) == sys.maxsize


def test_without_limits_it_is_the_memory_that_is_available(tmp_path):
    assert page_cache_room(*make(tmp_path, MEMORY)) == 8 * GB


@pytest.mark.parametrize(
    ("root", "line", "limit", "usage", "prefix"),
    [
        ("cgroup", "0::", "memory.max", "memory.current", ""),
        ("cgroup/unified", "0::", "memory.max", "memory.current", ""),
        ("cgroup/memory", "4:memory:", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        (
            "cgroup/memory",
            "4:cpu,memory:",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_",
        ),
    ],
)
def test_the_least_of_all_groups_above_counts_and_what_is_cached_already(
    tmp_path, root, line, limit, usage, prefix
):
    stat = f"cache 5\n{prefix}inactive_file {2 * GB}\n{prefix}active_file {GB}\nother words here"
    files = {
        **MEMORY,
        "proc/self/cgroup": f"7:cpuset:/x\n{line}/job/task",
        f"{root}/job/task/{limit}": "max",
        f"{root}/job/task/{usage}": GB,
        f"{root}/job/{limit}": 6 * GB,
        f"{root}/job/{usage}": 5 * GB,
        f"{root}/job/memory.stat": stat,
        f"{root}/{limit}": 7 * GB,
        f"{root}/{usage}": GB,
    }
    assert page_cache_room(*make(tmp_path, files)) == 4 * GB
    (tmp_path / root / "job" / "task" / limit).write_text(str(2 * GB))
    assert page_cache_room(tmp_path / "proc", tmp_path / "cgroup") == GB
    (tmp_path / root / "job" / "task" / limit).write_text(str(GB // 2))
    assert page_cache_room(tmp_path / "proc", tmp_path / "cgroup") == 0


def test_a_container_whose_group_is_the_root(tmp_path):
    files = {
        **MEMORY,
        "proc/self/cgroup": "0::/kubepods/pod/abc",
        "cgroup/memory.max": 3 * GB,
        "cgroup/memory.current": 2 * GB,
        "cgroup/memory.stat": f"inactive_file {GB}\nactive_file 0",
    }
    assert page_cache_room(*make(tmp_path, files)) == 2 * GB
