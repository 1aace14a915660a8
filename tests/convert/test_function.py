"""Functions and sources named by their file, in this process and in workers."""

import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from shardgraph import ShardedDataset, convert
from shardgraph.cli import main
from shardgraph.convert import find_source
from shardgraph.convert.function import describe, dumps, load_function, load_named

OWN = """
import torch
from torch_geometric.data import Data
from shardgraph import Source
from shardgraph.convert import Option, Partition
import own_helper


class Pair(Data):
    def __inc__(self, key, value, *args):
        return 7 if key == "x" else super().__inc__(key, value, *args)


class Counted(Source):
    name = "counted"
    options = (
        Option(name="count", type=int, help="graphs a partition", default=2),
        Option(name="names", type=str, many=True, help="names"),
        Option(name="loud", type=bool, help="upper case", default=False),
    )

    def __init__(self, spec, *, count=2, names=None, loud=False):
        super().__init__(spec)
        self.count, self.names, self.loud = count, names or ["n"], loud

    def partitions(self):
        return [Partition(file=self.spec, first=i * self.count, num_records=self.count)
                for i in range(3)]

    def read(self, partition):
        import own_later
        for i in range(partition.first, partition.first + self.count):
            name = "-".join(self.names)
            yield Pair(x=torch.tensor([i + own_later.SHIFT]), name=own_helper.say(name, self.loud))


def keep(data):
    return int(data.x[0]) != 11
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own_helper.py").write_text(
        "def say(name, loud): return name.upper() if loud else name\n"
    )
    (tmp_path / "own_later.py").write_text("SHIFT = 10\n")
    (tmp_path / "own_counted.py").write_text(OWN)
    (tmp_path / "input.txt").write_text("input\n")
    before, modules = list(sys.path), set(sys.modules)
    yield tmp_path / "own_counted.py"
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if name.startswith(("own_", "_shardgraph_")):
            del sys.modules[name]
    load_function.cache_clear()


def test_own_source_on_the_command_line(own, tmp_path, capsys):
    out = tmp_path / "out"
    args = ["--set", "count=1", "--set", "names=a,b", "--set", "loud=True", "--workers", "2"]
    own_format = ["--format", f"{own}:Counted"]
    status = main(["convert", str(tmp_path / "input.txt"), str(out), *own_format, *args])
    assert (status, capsys.readouterr().err) == (0, "")
    dataset = ShardedDataset(out)
    assert [(int(data.x), data.name) for data in dataset] == [(i, "A-B") for i in (10, 11, 12)]
    # The class is recorded under the name by which programs import it.
    assert dataset.manifest.schema.data_class == "own_counted:Pair"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--set", "size=1"], "has no option 'size'; it has count, loud, names"),
        (["--set", "loud=2"], "--set loud: write true or false, not '2'"),
        (["--set", "count=x"], "--set count: invalid literal for int"),
    ],
)
def test_wrong_options_of_an_own_source(own, tmp_path, capsys, given, message):
    args = ["convert", str(tmp_path / "input.txt"), str(tmp_path / "out")]
    assert main([*args, "--format", f"{own}:Counted", *given]) == 2
    assert message in capsys.readouterr().err
    assert main([*args, *given]) == 2
    assert "name it with --format" in capsys.readouterr().err


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_own_source_and_filter_in_workers(own, tmp_path, method):
    """Where workers start afresh they find the file by its path."""
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        report = convert(
            tmp_path / "input.txt",
            tmp_path / "out",
            format=f"{own}:Counted",
            pre_filter=load_function(f"{own}:keep"),
            executor=pool,
            progress=False,
        )
    assert (report.graphs, report.filtered) == (5, 1)
    assert [int(data.x) for data in ShardedDataset(tmp_path / "out")] == [10, 12, 13, 14, 15]


def test_pickle_names_the_file(own, tmp_path):
    source = find_source(tmp_path / "input.txt", format=f"{own}:Counted", count=1)
    (tmp_path / "dumped").write_bytes(dumps((source, load_function(f"{own}:keep"))))
    code = (
        "import pickle, sys; import shardgraph.convert.execute\n"
        f"source, keep = pickle.load(open({str(tmp_path / 'dumped')!r}, 'rb'))\n"
        "graphs = [g for p in source.partitions() for g in source.read(p)]\n"
        "print([int(g.x) for g in graphs], [keep(g) for g in graphs], type(source).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "[10, 11, 12] [True, False, True] own_counted\n")


@pytest.mark.usefixtures("own")
def test_files_of_one_name_are_two_modules(tmp_path):
    found = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_name.py").write_text(f"def where(): return {folder!r}\n")
        found.append(load_function(f"{tmp_path / folder / 'own_name.py'}:where"))
    assert [function() for function in found] == ["a", "b"]
    assert found[0] is load_named(f"{tmp_path}/a/own_name.py:where", "function")
    assert [function() for function in pickle.loads(dumps(found))] == ["a", "b"]


@pytest.mark.usefixtures("own")
def test_file_does_not_take_the_name_of_a_module(tmp_path):
    (tmp_path / "colorsys.py").write_text("def f(data): return data\n")
    assert load_function(f"{tmp_path}/colorsys.py:f").__module__.startswith("_shardgraph_colorsys_")
    import colorsys

    assert hasattr(colorsys, "rgb_to_hsv")
    (tmp_path / "torch.py").write_text("def f(data): return data\n")
    assert load_function(f"{tmp_path}/torch.py:f")(1) == 1
    assert sys.modules["torch"] is torch


@pytest.mark.usefixtures("own")
def test_file_that_fails_leaves_no_module(tmp_path):
    (tmp_path / "own_broken.py").write_text("import own_absent\n")
    with pytest.raises(ValueError, match=r"own_broken.py:f: No module named 'own_absent'"):
        load_function(f"{tmp_path}/own_broken.py:f")
    assert "own_broken" not in sys.modules
    (tmp_path / "own_broken.py").write_text("f = 3\n")
    with pytest.raises(ValueError, match=r"own_broken.py:f is a int, not a function"):
        load_function(f"{tmp_path}/own_broken.py:f")


def test_description_has_no_folder(own):
    told = describe(f"{own}:keep")
    assert told["name"] == "own_counted.py:keep"
    assert len(told["sha256"]) == 64
