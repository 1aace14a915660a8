"""Full disks, read-only directories, two converters: a clear error, and nothing half-made."""

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from numbers_source import Numbers, contents, written
from torture_tools import (
    Child,
    are_right,
    linux,
    make_read_only,
    mount_tmpfs,
    outcome,
    own_mounts,
    why_no_mounts,
    write,
)

import shardgraph as sg
from shardgraph.convert import convert

pytestmark = [pytest.mark.torture, linux]


@pytest.fixture(scope="module")
def mounts() -> None:
    if why := why_no_mounts():
        pytest.skip(why)


def convert_numbers(out: Path, compression: str | None = None, count: int = 600) -> None:
    source = Numbers(count=count, size=200)
    options = {"shard_size": 4000, "compression": compression, "progress": False}
    convert(source, out, **options)


def final_names(out: Path) -> list[str]:
    """What a reader would take for a dataset's."""
    return [path.name for path in out.glob("*") if path.suffix in {".h5", ".json"}]


@pytest.fixture(scope="module", params=[None, "gzip"], ids=["plain", "gzip"])
def compression(request) -> str | None:
    return request.param


@pytest.fixture(scope="module")
def reference(compression, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("reference") / "out"
    convert_numbers(out, compression)
    return contents(out)


def on_a_small_disk(disk: Path, nbytes: int, compression: str | None, say: Any) -> None:
    """Converts where there is no room for it; then makes room and gives the same command again."""
    own_mounts()
    mount_tmpfs(disk, nbytes)
    out = disk / "out"
    try:
        convert_numbers(out, compression)
    except (OSError, sg.ConversionError) as error:
        say(f"{type(error).__name__}: {error}".replace("\n", " "))
    else:
        say("enough")
    assert final_names(out) == [] or (out / "manifest.json").exists()
    mount_tmpfs(disk, 64 << 20, again=True)
    if not (out / "manifest.json").exists():
        convert_numbers(out, compression)
    for name, data in contents(out).items():  # the disk is this process's alone
        (disk.parent / f"found-{name}").write_bytes(data)


@pytest.mark.torture(rounds=4)
@pytest.mark.usefixtures("mounts")
def test_a_disk_that_fills_up_while_converting(tmp_path, compression, reference, rounds):
    needed = sum(map(len, reference.values()))
    said = []
    for number in rounds:
        folder = tmp_path / f"{number}"
        (folder / "disk").mkdir(parents=True)
        nbytes = int(needed * rounds.rng.uniform(0.0, 1.1)) // 4096 * 4096 + 4096
        lines = outcome(on_a_small_disk, folder / "disk", nbytes, compression).splitlines()
        said.append(lines[0])
        found = {p.name.removeprefix("found-"): p.read_bytes() for p in folder.glob("found-*")}
        assert found == reference
    for line in said:
        assert line == "enough" or ("No space left on device" in line and "disk/out" in line), line
    assert any("bytes are needed" in line for line in said)


def with_a_limit(out: Path, nbytes: int, compression: str | None, say: Any) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        source = Numbers(count=3000, size=3000)
        convert(source, out, shard_size=10**6, compression=compression, progress=False)
    except sg.ConversionError as error:
        say(error)


@pytest.mark.torture(rounds=1)
def test_files_that_may_not_grow(tmp_path, compression, rounds):
    for number in rounds:
        out = tmp_path / f"{number}"
        said = outcome(with_a_limit, out, rounds.rng.randrange(10_000, 60_000), compression)
        assert "File too large: about " in said
        assert "bytes are needed" in said
        assert f"{out / '.conversion' / 'shard-00000-00000.h5'}" in said
        assert not out.exists()


def write_on_a_small_disk(disk: Path, nbytes: int, say: Any) -> None:
    own_mounts()
    mount_tmpfs(disk, nbytes)
    try:
        write(disk / "data", 300, shard_size=9_000)
    except OSError as error:
        say(error)
        assert final_names(disk / "data") == []
    else:
        say("enough")


@pytest.mark.torture(rounds=4)
@pytest.mark.usefixtures("mounts")
def test_a_disk_that_fills_up_while_writing(tmp_path, rounds):
    said = []
    for number in rounds:
        (tmp_path / f"{number}").mkdir()
        nbytes = rounds.rng.randrange(4096, 200_000, 4096)
        said.append(outcome(write_on_a_small_disk, tmp_path / f"{number}", nbytes))
    for line in said:
        assert line == "enough" or ("No space left on device" in line and "/data" in line), line
    assert set(said) > {"enough"} or "enough" not in said


# Read-only directories ---------------------------------------------------------------------------


def on_a_read_only_directory(root: Path, say: Any) -> None:
    own_mounts()
    make_read_only(root)
    dataset = sg.ShardedDataset(root)
    assert are_right([dataset[number] for number in range(40)], [*range(40)])
    for batch in sg.GraphLoader(dataset, 8, shuffle=True, num_workers=1):
        assert are_right(batch, batch.number.tolist())
    assert sg.verify(root, level="full", workers=1) == []
    for write_there in (
        lambda: sg.DatasetWriter(root, overwrite=True),
        lambda: sg.DatasetWriter(root / "new"),
        lambda: convert(Numbers(), root, overwrite=True, progress=False),
        lambda: convert(Numbers(), root / "new", progress=False),
    ):
        try:
            write_there()
        except OSError as error:
            say(error)
        else:
            say("not refused")


@pytest.mark.usefixtures("mounts")
def test_a_read_only_directory_is_read_and_not_written(tmp_path):
    root = write(tmp_path / "data", 40, shard_size=9_000)
    before = contents(root)
    said = outcome(on_a_read_only_directory, root).splitlines()
    assert len(said) == 4
    for line in said:
        assert "Read-only file system" in line
        assert str(root) in line
    assert contents(root) == before


# Two converters ----------------------------------------------------------------------------------


def convert_at_once(out: Path, at: float, say: Any) -> None:
    time.sleep(max(0.0, at - time.monotonic()))
    try:
        convert_numbers(out, count=200)
    except (OSError, sg.ConversionError) as error:
        say(f"{type(error).__name__}: {error}")
    else:
        say("converted")


@pytest.mark.torture(rounds=3)
def test_converters_that_start_at_once(tmp_path, rounds):
    """One converts; the others are refused, or come when it is done."""
    for number in rounds:
        out = tmp_path / f"{number}"
        at = time.monotonic() + 0.1
        children = [Child(convert_at_once, out, at) for _ in range(3)]
        if number % 3 == 2:  # the one that holds the lock dies, and leaves the way free
            time.sleep(0.1 + rounds.rng.uniform(0.0, 0.1))
            os.kill(children[0].pid, signal.SIGKILL)
        said = []
        for child in children:
            status, text = child.end()
            assert status in (0, -signal.SIGKILL), text
            said.append(text)
        assert said.count("converted") <= 1
        for text in said:
            assert (
                text in {"converted", ""}
                or f"{out} is being written by another process (pid " in text
                or "already holds a dataset" in text
            ), text
        if "converted" not in said:
            convert_numbers(out, count=200)
        assert written(out) == [*range(200)]
