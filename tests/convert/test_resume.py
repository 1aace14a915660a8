import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from numbers_source import Numbers, contents, written

from shardgraph import ConversionError
from shardgraph.convert import convert
from shardgraph.convert.source import describe_files
from shardgraph.writer import DatasetWriter

HERE = Path(__file__).resolve().parent
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, HERE.parents[:2]))}


def run(out, source=None, **options):
    return convert(source or Numbers(), out, progress=False, **options)


def interrupted(out, at=50, *, overwrite=False, **options):
    """Leaves a conversion that was interrupted at a record."""

    class Interrupted(Numbers):
        def graph(self, i):
            if i == at:
                raise KeyboardInterrupt
            return super().graph(i)

    with pytest.raises(KeyboardInterrupt, match="interrupted; "):
        run(out, Interrupted(**options), overwrite=overwrite)


def test_finished_shards_are_kept(tmp_path):
    interrupted(tmp_path / "out")
    shards = sorted((tmp_path / "out" / ".conversion").glob("shard-*.h5"))
    assert [path.name for path in shards] == ["shard-00000-00000.h5", "shard-00001-00000.h5"]
    inodes = [path.stat().st_ino for path in shards]
    run(tmp_path / "out")
    final = [(tmp_path / "out" / f"shard-0000{i}.h5").stat().st_ino for i in range(2)]
    assert final == inodes
    assert written(tmp_path / "out") == list(range(100))


def test_shards_within_a_partition_are_kept(tmp_path):
    class Once(Numbers):
        made = ()

        def graph(self, i):
            Once.made += (i,)
            return super().graph(i)

    def transform(data):
        seen.append(int(data.x[0, 0]))
        if stop and seen[-1] == 80:
            raise KeyboardInterrupt
        return data

    seen, stop = [], True
    options = {"source": Once(size=100), "shard_size": 1500, "pre_transform": transform}
    with pytest.raises(KeyboardInterrupt, match=r"interrupted; [2-9] finished shards kept"):
        run(tmp_path / "out", **options)
    seen, stop = [], False
    run(tmp_path / "out", **options)
    assert seen == list(range(seen[0], 100))
    assert 40 < seen[0] <= 80
    run(tmp_path / "once", **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"?"])
def test_a_damaged_shard_is_made_again(tmp_path, damage):
    interrupted(tmp_path / "out")
    path = tmp_path / "out" / ".conversion" / "shard-00001-00000.h5"
    path.write_bytes(damage(path.read_bytes()))
    run(tmp_path / "out")
    run(tmp_path / "once")
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


def test_a_garbled_journal_is_an_error_that_says_how_to_start_over(tmp_path):
    interrupted(tmp_path / "out")
    path = tmp_path / "out" / ".conversion" / "00001-00000.json"
    path.write_text(path.read_text()[:-5])
    with pytest.raises(ConversionError, match=r"00001-00000.json is not .*\(--no-resume\)"):
        run(tmp_path / "out")
    run(tmp_path / "out", resume=False)
    assert written(tmp_path / "out") == list(range(100))


@pytest.mark.parametrize("change", [lambda text: text[:-5], lambda _: "{}", lambda _: "[]"])
def test_a_garbled_state_is_an_error_too(tmp_path, change):
    interrupted(tmp_path / "out")
    path = tmp_path / "out" / ".conversion" / "state.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(ConversionError, match=r"state.json is not .*\(--no-resume\)"):
        run(tmp_path / "out")
    run(tmp_path / "out", resume=False)
    assert written(tmp_path / "out") == list(range(100))


def test_what_may_not_start_over_throws_nothing_away(tmp_path):
    run(tmp_path / "out", Numbers(count=30))
    interrupted(tmp_path / "out", at=70, overwrite=True)
    before = contents(tmp_path / "out" / ".conversion")
    with pytest.raises(FileExistsError, match="already holds a dataset"):
        run(tmp_path / "out", resume=False)
    assert contents(tmp_path / "out" / ".conversion") == before


def test_another_conversion_is_not_gone_on_with(tmp_path):
    interrupted(tmp_path / "out")
    with pytest.raises(ConversionError, match=r"another conversion \(source count: 100 .* 60 now"):
        run(tmp_path / "out", Numbers(count=60))
    with pytest.raises(ConversionError, match=r"\(conversion shard_size: 128000000 .* 5000 now\)"):
        run(tmp_path / "out", shard_size=5000)
    with pytest.raises(ConversionError, match=r"\(conversion keys: None then, \[\] now\)"):
        run(tmp_path / "out", keys=[])
    before = contents(tmp_path / "out" / ".conversion")
    run(tmp_path / "out", Numbers(count=60), resume=False)
    assert before
    assert written(tmp_path / "out") == list(range(60))


def test_what_a_published_conversion_left_stops_no_other(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:  # as if it was killed there
        patch.setattr("shardgraph.convert.assemble.remove_unpublished", lambda *_: None)
        run(tmp_path / "out")
    assert (tmp_path / "out" / ".conversion" / "state.json").exists()
    with pytest.raises(FileExistsError, match="already holds a dataset"):
        run(tmp_path / "out", Numbers(count=60))
    run(tmp_path / "out", Numbers(count=60), overwrite=True)
    assert written(tmp_path / "out") == list(range(60))
    assert sorted(contents(tmp_path / "out")) == [
        ".lock",
        "manifest.json",
        *(f"shard-0000{i}-1.h5" for i in range(3)),
    ]


def test_of_many_files_only_those_that_changed_are_told(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(name)

    class Files(Numbers):
        def provenance(self):
            return {"files": describe_files(tmp_path / name for name in "abc")}

        def graph(self, i):
            if stop and i == 50:
                raise KeyboardInterrupt
            return super().graph(i)

    stop = True
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", Files())
    stop = False
    (tmp_path / "b").write_text("?")
    told = r"\[\{'name': 'b', [^\[\]]*\}\]"
    with pytest.raises(ConversionError, match=rf"\(source files: {told} then, {told} now\)"):
        run(tmp_path / "out", Files())


def test_the_journal_goes_after_the_shards_that_were_replaced(tmp_path, monkeypatch):
    """Or one that was killed in between would leave these for good."""
    run(tmp_path / "out", Numbers(count=30))
    there = []

    def rmtree(path, **options):
        there.append(sorted(path.name for path in (tmp_path / "out").glob("*.h5")))
        remove(path, **options)

    remove = shutil.rmtree
    monkeypatch.setattr("shardgraph.writer.shutil.rmtree", rmtree)
    run(tmp_path / "out", Numbers(count=40), overwrite=True)
    assert there[-1] == ["shard-00000-1.h5", "shard-00001-1.h5"]


def test_no_resume_starts_over(tmp_path):
    seen = []

    def transform(data):
        seen.append(int(data.x[0, 0]))
        if stop and seen[-1] == 50:
            raise KeyboardInterrupt
        return data

    stop = True
    with pytest.raises(KeyboardInterrupt, match="2 finished shards kept"):
        run(tmp_path / "out", pre_transform=transform)
    seen, stop = [], False
    run(tmp_path / "out", pre_transform=transform, resume=False)
    assert seen == [0, *range(100)]  # the first graph tells the schema


def test_a_writer_throws_an_interrupted_conversion_away(tmp_path):
    interrupted(tmp_path / "out")
    with DatasetWriter(tmp_path / "out") as writer:
        writer.write(Numbers().graph(3))
    assert sorted(contents(tmp_path / "out")) == [".lock", "manifest.json", "shard-00000.h5"]


def test_an_interrupted_overwriting_leaves_the_old_dataset_until_the_new_one_is_whole(tmp_path):
    run(tmp_path / "out", Numbers(count=30))
    before = contents(tmp_path / "out")
    interrupted(tmp_path / "out", at=70, overwrite=True)
    found = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir() if p.is_file()}
    assert found == before
    with pytest.raises(FileExistsError, match="already holds a dataset"):
        run(tmp_path / "out")
    run(tmp_path / "out", overwrite=True)
    assert written(tmp_path / "out") == list(range(100))


def test_an_error_before_anything_is_finished_leaves_nothing(tmp_path):
    interrupted(tmp_path / "out", at=3)
    assert not (tmp_path / "out").exists()


# Ctrl-C


@pytest.mark.torture
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_stops_within_seconds_and_says_how_to_go_on(tmp_path, workers):
    code = (
        "import signal\nimport sys\nfrom numbers_source import Numbers\n"
        "from shardgraph import convert\n"
        "if __name__ == '__main__':\n"
        # A shell has what it runs in the background ignore it, the tests and this perhaps.
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    convert(Numbers(count=10**5, size=100, delay=0.002), sys.argv[1], "
        f"workers={workers}, shard_size=1000)\n"
    )
    (tmp_path / "program.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "program.py", tmp_path / "out"],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for _ in range(600):
            if list((tmp_path / "out").glob(".conversion/0*-00001.json")):
                break
            time.sleep(0.1)
        started = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert time.monotonic() - started < 10
    assert process.returncode != 0
    last = stderr.splitlines()[-1]
    assert "KeyboardInterrupt: interrupted; " in last
    assert "the same command goes on from there" in last
    left = [path.name for path in (tmp_path / "out" / ".conversion").iterdir()]
    assert [name for name in left if name.startswith((".", "running"))] == []


def test_a_journal_tells_of_each_step(tmp_path):
    interrupted(tmp_path / "out")
    step = json.loads((tmp_path / "out" / ".conversion" / "00001-00000.json").read_text())
    assert (step["last"], step["read"], step["dropped"], step["rejects"]) == (True, 20, [], [])
    assert step["shard"]["num_graphs"] == 20


def test_a_resumed_conversion_says_from_where(tmp_path, capsys):
    interrupted(tmp_path / "out")
    convert(Numbers(), tmp_path / "out")
    assert "resuming: 2 finished shards there, 40 of 100 records done\n" in capsys.readouterr().err
    convert(Numbers(), tmp_path / "other")
    assert "resuming" not in capsys.readouterr().err
