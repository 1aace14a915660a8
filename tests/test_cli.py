"""The command line: what it prints, and with which status it ends."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import shardgraph
from shardgraph import DatasetWriter, Manifest, ShardedDataset, convert
from shardgraph.cli import COMMANDS, main
from shardgraph.cli.convert import pairs, source_options, words
from shardgraph.convert import source_class, source_names

ROOT = Path(__file__).resolve().parents[1]
SMILES = "smiles,name,y\nCCO,a,1.5\nC1CC1,b,2\nxx,c,3\nC,d,\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mols.csv"
    path.write_text(SMILES)
    return path


@pytest.fixture
def call(capsys):
    """Runs a command in this process: its exit status, what it prints, and what it complains of."""

    def run(*args):
        status = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def shell(*args, code=("-m", "shardgraph")):
    done = subprocess.run(
        [sys.executable, *code, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return done.returncode, done.stdout, done.stderr


# Conversion


def test_convert_prints_the_summary(call, table, tmp_path):
    pytest.importorskip("rdkit")
    status, out, err = call(
        "convert", table, tmp_path / "out", "--on-error", "skip", "--targets", "y"
    )
    assert (status, err) == (3, "")
    assert out.splitlines()[0] == f"{tmp_path / 'out'}: 3 graphs in 1 shard"
    assert "4 read = 3 written + 1 rejected (see rejects.jsonl) + 0 filtered" in out
    (line,) = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    assert json.loads(line)["line"] == 4


@pytest.mark.parametrize("code", [("-m", "shardgraph", "convert"), ("tools/convert.py",)])
def test_both_programs_end_with_the_status(table, tmp_path, code):
    pytest.importorskip("rdkit")
    status, out, err = shell(table, tmp_path / "out", code=code)
    assert (status, out) == (1, "")
    first, second = err.splitlines()
    assert first == (
        f"shardgraph: error: {table}, line 4: not a SMILES that RDKit can read (syntax error). "
        "Mend it, or leave such records out with --on-error skip"
    )
    assert second == "nothing was finished, and nothing is left behind"
    assert not (tmp_path / "out").exists()


def test_options_of_engine_and_source_arrive(call, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch_geometric.data import Data\n"
        "def graphs(*args):\n"
        "    for i in range(20):\n"
        "        yield Data(x=torch.full((3, 2), float(i)), z=torch.zeros(1), y=i, words=[*args])\n"
        "def keep(data):\n    return data.y >= 10\n"
        "def double(data):\n    data.x = 2 * data.x\n    return data\n"
    )
    mine = tmp_path / "mine.py"
    arguments = [f"{mine}:graphs", tmp_path / "out", "--args", 'a,"b,c"', "--shard-size", "100"]
    arguments += ["--filter", f"{mine}:keep", "--transform", f"{mine}:double"]
    arguments += ["--cast", "x=float16", "--drop", "z", "--compression", "gzip"]
    status, out, err = call("convert", *arguments)
    assert (status, err) == (0, "")
    assert "20 read = 10 written + 0 rejected + 10 filtered" in out
    data = ShardedDataset(tmp_path / "out")[4]
    assert sorted(data.keys()) == ["words", "x", "y"]
    assert data.words == ["a", "b,c"]
    assert torch.equal(data.x, torch.full((3, 2), 28.0).half())
    assert len(Manifest.read(tmp_path / "out").shards) > 1
    status, _, err = call("convert", *arguments)
    assert status == 1
    assert "already holds a dataset; pass --overwrite to replace it" in err
    assert call("convert", *arguments, "--overwrite", "--keys", "x")[0] == 0
    assert Manifest.read(tmp_path / "out").generation == 1


def test_options_may_stand_before_between_and_after_the_paths(call, tmp_path):
    (tmp_path / "one.edges").write_text("0 1\n")
    for number, place in enumerate(range(3)):
        out = tmp_path / f"out{number}"
        words = [tmp_path / "one.edges", out]
        words[place:place] = ["--on-error", "skip"]
        assert call("convert", *words)[::2] == (0, "")
        assert len(ShardedDataset(out)) == 1


def test_a_transform_that_returns_no_graph_is_blamed_in_the_users_words(call, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from torch_geometric.data import Data\ndef graphs():\n    yield Data(y=1)\n"
        "def bad(data):\n    return [data]\n"
    )
    arguments = [f"{mine}:graphs", tmp_path / "out", "--transform", f"{mine}:bad"]
    status, out, err = call("convert", *arguments)
    assert (status, out) == (1, "")
    assert err.splitlines()[0] == (
        f"shardgraph: error: {mine}:graphs, graph 0: pre_transform (--transform) mine.py:bad "
        "returned a list, not a graph: expected one Data or HeteroData. Mend it, or leave such "
        "records out with --on-error skip"
    )


def test_dry_run_writes_nothing(call, table, tmp_path):
    pytest.importorskip("rdkit")
    before = sorted(tmp_path.iterdir())
    status, out, err = call("convert", table, "--dry-run")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["format", "smiles"]
    assert "4; of the first 4: 3 written, 1 rejected, 0 filtered" in lines[1]
    assert f"rejected: {table}, line 4: not a SMILES" in lines[2]
    assert "it would stop there; --on-error skip leaves them out" in lines[3]
    assert lines[4].startswith("example   Data(x=[3, 9], edge_index=[2, 4]")
    assert ["edge_attr", "int64", "[E,", "3]"] in [line.split() for line in lines]
    assert lines[-4] == "N nodes and E edges of a graph, * any other length"
    assert "about 3 graphs" in lines[-2]
    assert lines[-1] == "nothing was written"
    assert sorted(tmp_path.iterdir()) == before


def test_dry_run_of_an_unknown_number_of_records(call, tmp_path):
    """A function tells it by ending; where it goes on, a million stand for all."""
    for count in (99, 101):
        (tmp_path / f"few{count}.py").write_text(
            "import torch\nfrom torch_geometric.data import Data\n"
            f"def graphs():\n    for i in range({count}):\n        yield Data(x=torch.ones(3, 2))\n"
        )
    out = call("convert", f"{tmp_path / 'few99.py'}:graphs", "--dry-run")[1]
    assert "records   99; of the first 99: 99 written" in out
    assert "in all    about 99 graphs, " in out
    out = call("convert", f"{tmp_path / 'few101.py'}:graphs", "--dry-run")[1]
    assert "records   an unknown number; of the first 100: 100 written" in out
    assert "a million about 1,000,000 graphs, 40.6 MB stored, " in out


def test_dry_run_that_skips_says_nothing_of_stopping(call, table):
    pytest.importorskip("rdkit")
    out = call("convert", table, "--dry-run", "--on-error", "skip")[1]
    assert "1 rejected" in out
    assert "--on-error skip" not in out


def test_help_of_convert_is_in_groups_and_ends_with_the_exit_status(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["convert", "--help"])
    usage, *groups = capsys.readouterr().out.split("\n\n")
    assert usage == "usage: shardgraph convert [OPTION ...] SOURCE OUT"
    heads = [group.splitlines()[0] for group in groups]
    assert heads[1:8] == [
        "positional arguments:",
        "options:",
        "how it is written:",
        "records that cannot become a graph:",
        "what is made of each graph, in this order:",
        "named subsets, for dataset.split(name):",
        "options of several formats:",
    ]
    own = {
        name for _, formats in source_options().values() for name in formats[: len(formats) == 1]
    }
    assert {head for head in heads if head.startswith("options of ")} == {
        "options of several formats:",
        *(f"options of {name}:" for name in own),
    }
    statuses = [line.split()[0] for line in groups[-1].splitlines()[1:] if line[2] != " "]
    assert statuses == ["0", "1", "2", "3", "130"]


def test_dry_run_with_no_graph(call, tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "bad.smi").write_text("xx\nyy\n")
    status, out, err = call("convert", tmp_path / "bad.smi", "--dry-run")
    assert (status, out) == (1, "")
    assert "none of the first 2 records becomes a graph (0 filtered, 2 rejected)" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: SOURCE"),
        (["SOURCE"], "OUT is missing: where should the dataset go?"),
        (["SOURCE", ""], "OUT is missing: where should the dataset go?"),
        (["", "out"], "SOURCE is empty: what should be converted?"),
        (["SOURCE", "out", "--workers", "0"], "workers must be at least 1, got 0"),
        (["SOURCE", "--dry-run", "--workers", "0"], "workers must be at least 1, got 0"),
        (["SOURCE", "out", "--workers", "two"], "invalid int value: 'two'"),
        (["SOURCE", "out", "--on-error", "warn"], "invalid choice: 'warn'"),
        (["SOURCE", "out", "--cast", "x"], "write name=value,name=value, got 'x'"),
        (["SOURCE", "out", "--format", "gif"], "unknown format 'gif'; known: python, pyg"),
        (["SOURCE", "out", "--cutoff", "5"], "the smiles source has no option cutoff; it has kek"),
        (
            ["SOURCE", "out", "--target", "y"],
            "the smiles source has no option target; did you mean targets (--targets)? it has kek",
        ),
        (["SOURCE", "out", "--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["SOURCE", "out", "--shard-size", "big"], "cannot read 'big' as a size"),
    ],
)
def test_usage_errors_end_with_2(capsys, table, tmp_path, monkeypatch, arguments, message):
    pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    arguments = [str(table) if word == "SOURCE" else word for word in arguments]
    try:
        status = main(["convert", *arguments])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_absent_source_is_told(call, tmp_path):
    status, _, err = call("convert", tmp_path / "absent.csv", tmp_path / "out")
    assert status == 1
    assert f"no such file or folder: {tmp_path / 'absent.csv'}" in err


def test_an_interrupted_conversion_ends_with_130_and_goes_on(call, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\nfrom torch_geometric.data import Data\ndef graphs(go_on):\n"
        "    for i in range(9):\n"
        "        if i == 5 and not os.path.exists(go_on):\n            raise KeyboardInterrupt\n"
        "        yield Data(y=i)\n"
    )
    go_on = tmp_path / "go on"
    arguments = ["convert", f"{tmp_path / 'mine.py'}:graphs", tmp_path / "out", "--args", go_on]
    arguments += ["--shard-size", "1"]
    status, out, err = call(*arguments)
    assert (status, out) == (130, "")
    assert err.startswith("shardgraph: interrupted; 5 finished shards kept")
    go_on.touch()
    assert call(*arguments)[0] == 0
    assert [data.y for data in ShardedDataset(tmp_path / "out")] == [*range(9)]


def test_debug_shows_where(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        main(["convert", str(tmp_path / "absent.csv"), str(tmp_path / "out"), "--debug"])


def test_lists():
    assert words("") == []
    assert words("a, b,c") == ["a", "b", "c"]
    assert words('"a, b",c') == ["a, b", "c"]
    assert pairs("x=float16,y=int8") == {"x": "float16", "y": "int8"}


def test_options_of_the_sources_fit_together():
    """One flag is one thing, and none is hidden by an argument of ``convert``."""
    # "split" is the name of a given split, or fractions: told apart by what it says.
    engine = set(inspect.signature(convert.convert).parameters) - {"source", "out", "split"}
    for name, (option, formats) in source_options().items():
        assert name not in engine, formats
        for other in formats:
            same = next(o for o in source_class(other).options if o.name == name)
            assert (same.type, same.many) == (option.type, option.many), (name, formats)


# What is there


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "data"
    with DatasetWriter(path, provenance={"source": {"format": "made"}}) as writer:
        for i in range(4):
            x = torch.arange(4.0).reshape(2, 2) + i
            x[0, 0] = float("nan")
            edge_index = torch.tensor([[0, 1, 1], [1, 0, 1]])
            writer.write(Data(x=x, edge_index=edge_index, y=torch.tensor([i % 2]), name="n"))
    return path


def test_info_says_what_is_inside(call, dataset):
    status, out, err = call("info", dataset)
    assert (status, err) == (0, "")
    head, columns, sizes, labels, provenance = out.split("\n\n")
    assert head.startswith(f"{dataset}: 4 graphs (Data) in 1 shard\n8 nodes, 12 edges, ")
    *lines, legend = columns.splitlines()
    table = [line.split() for line in lines]
    assert legend == (
        "N nodes and E edges of a graph, * any other length; stored as: integers in the narrowest "
        "dtype"
    )
    assert table[1:] == [
        ["x", "float32", "[N,", "2]", "float32", "3.5", "1.384", "1", "6", "4"],
        ["edge_index", "int64", "[2,", "E]", "uint8", "0.6667", "0.4714", "0", "1", "0"],
        ["y", "int64", "[*]", "uint8", "0.5", "0.5", "0", "1", "0"],
        ["name", "str", "uint8"],
    ]
    assert [line.split() for line in sizes.splitlines()[1:]] == [
        ["nodes", "2", "0", "2", "2", "2"],
        ["edges", "3", "0", "3", "3", "3"],
        ["in-degree", "1.5", "0.5", "1", "1.5", "2"],
    ]
    assert labels == "y has 2 classes (0: 2, 1: 2)"
    assert provenance.splitlines()[0] == "source   format=made"


def test_info_fits_a_screen_and_names_the_targets(call, tmp_path):
    names = ["gap, eV", *(f"target {i}" for i in range(20))]
    files = [{"name": f"a{i}.csv", "bytes": 1500 * i, "xxh3_128": "f" * 32} for i in range(1, 6)]
    source = {"format": "smiles", "files": files, "targets": names, "options": {"smiles": "s"}}
    with DatasetWriter(
        tmp_path / "data", provenance={"source": source, "note": "long " * 200}
    ) as w:
        w.write(Data(y=torch.ones(1, 21), num_nodes=1))
    out = call("info", tmp_path / "data")[1]
    lines = out.split("\n\n")[-1].splitlines()
    assert lines[:2] == [
        "source   format=smiles, options: smiles=s",
        "files    a1.csv (1.5 kB); a2.csv (3 kB); a3.csv (4.5 kB) and 2 more",
    ]
    assert lines[2].startswith('y        21 columns: "gap, eV", target 0, target 1, ')
    assert lines[3].endswith("target 10, ...")
    assert [line.startswith("note ") for line in lines[4:7]] == [True, False, False]
    assert lines[6].endswith("long ...")
    assert lines[7].startswith("versions ")
    assert max(map(len, lines)) <= 100


def test_what_became_y_is_told(call, tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "a.csv").write_text('smiles,"gap, eV",mw\nC,1,16\n')
    out = call("convert", tmp_path / "a.csv", tmp_path / "out")[1]
    assert '\n  y        2 columns: "gap, eV", mw\n' in out
    assert '\ny        2 columns: "gap, eV", mw\n' in call("info", tmp_path / "out")[1]
    report = convert(tmp_path / "a.csv", tmp_path / "b", targets=["mw"])
    assert report.targets == ("mw",)
    assert "\n  y        1 column: mw\n" in str(report)


def test_info_of_typed_graphs_and_splits(call, tmp_path):
    with DatasetWriter(tmp_path / "data") as writer:
        for i in range(1, 3):
            data = HeteroData()
            data["a"].x = torch.ones(i, 3)
            data["b"].num_nodes = 2
            data["a", "to", "b"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
            writer.write(data)
    status, out, _ = call("info", tmp_path / "data")
    assert status == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["node/a/x", "float32", "[N,", "3]", "float32", "1", "0", "1", "1", "0"] in rows
    assert ["node/a", "1.5", "0.5", "1", "1.5", "2"] in rows
    assert ["nodes", "3.5", "0.5", "3", "3.5", "4"] in rows


def test_info_of_infinite_values_and_labels_that_are_nan(call, tmp_path):
    with DatasetWriter(tmp_path) as writer:
        writer.write(Data(x=torch.full((2, 1), torch.inf), y=torch.tensor([torch.nan])))
    status, out, err = call("info", tmp_path)
    assert (status, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["x", "float32", "[N,", "1]", "float32", "inf", "nan", "inf", "inf", "0"] in rows
    assert "classes" not in out


def test_info_finds_the_dataset_of_a_pyg_root(call, dataset, tmp_path):
    (tmp_path / "root").mkdir()
    dataset.rename(tmp_path / "root" / "processed")
    assert call("info", tmp_path / "root")[0] == 0


def test_info_tells_of_damage(call, dataset):
    shard = dataset / "shard-00000.h5"
    shard.write_bytes(shard.read_bytes()[:-1])
    status, out, _ = call("info", dataset)
    assert status == 1
    assert "PROBLEM" in out.splitlines()[-1]
    assert "shard-00000.h5 has" in out.splitlines()[-1]


@pytest.mark.parametrize("command", ["info", "verify"])
def test_what_is_no_dataset_fails(call, tmp_path, command):
    status, out, err = call(command, tmp_path)
    assert status == 1
    assert "has no manifest.json" in out + err
    status, out, err = call(command, tmp_path / "nothing")
    assert status == 1
    assert f"{tmp_path / 'nothing'} does not exist, so there is no dataset in it" in out + err


def test_verify_lists_problems(call, dataset):
    status, out, _ = call("verify", dataset, "--level", "full")
    note = "note: column 'x': 4 NaN and 0 infinite of 16 values, the first in graph 0\n"
    assert (status, out) == (0, f"{dataset}: no problem found (full: every byte)\n{note}")
    (dataset / "shard-00000.h5").unlink()
    status, out, _ = call("verify", dataset)
    assert status == 1
    (line,) = out.splitlines()
    assert "shard-00000.h5" in line


def test_formats_are_listed(call):
    status, out, _ = call("formats")
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert tuple(lines) == source_names()
    assert "pip install 'shardgraph[chem]'" in lines["smiles"]
    assert "pip install" not in lines["python"]


# Loading


@pytest.mark.parametrize("arguments", [["--help"], ["convert", "--help"], ["formats"]])
def test_help_loads_neither_torch_nor_pyg(arguments):
    code = (
        "import sys\nfrom shardgraph.cli import main\n"
        f"try:\n    main({arguments})\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "print(sorted({'torch', 'torch_geometric'} & set(sys.modules)))"
    )
    status, out, err = shell(code=("-c", code))
    assert (status, err) == (0, "")
    assert len(out.splitlines()) > 5
    assert out.splitlines()[-1] == "[]"


def test_info_and_verify_need_no_torch(dataset):
    for command in ("info", "verify"):
        code = (
            "import sys\nsys.modules['torch'] = None\nfrom shardgraph.cli import main\n"
            f"sys.exit(main([{command!r}, {str(dataset)!r}]))"
        )
        assert shell(code=("-c", code))[0] == 0


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"shardgraph {shardgraph.__version__}\n"


def test_every_command_describes_itself(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n    {command} " in out for command in COMMANDS)


def test_a_closed_pipe_is_no_error(dataset):
    code = f"{sys.executable} -m shardgraph info {dataset} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
