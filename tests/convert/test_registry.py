import inspect
import subprocess
import sys

import pytest

from shardgraph.convert import (
    Partition,
    Source,
    find_source,
    make_data,
    register_source,
    registry,
    source_class,
    source_names,
)


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))


class Lines(Source):
    name = "lines"
    description = "one graph a line: a path of its numbers"

    def read(self, partition):
        with open(partition.file) as file:
            for line in file:
                x = [[float(word)] for word in line.split()]
                yield make_data(x=x, edge_index=[[i, i + 1] for i in range(len(x) - 1)])


def test_own_source_reads_after_registration(tmp_path, read_all):
    path = tmp_path / "a.lines"
    path.write_text("1 2 3\n4\n")
    assert register_source(Lines) is Lines
    graphs, rejects = read_all(path, format="lines")
    assert rejects == []
    assert [graph.x.tolist() for graph in graphs] == [[[1.0], [2.0], [3.0]], [[4.0]]]
    assert [graph.edge_index.tolist() for graph in graphs] == [[[0, 1], [1, 2]], [[], []]]
    assert "lines" in source_names()


def test_source_is_found_by_its_class_path():
    assert source_class(f"{Lines.__module__}:Lines").name == "lines"
    with pytest.raises(ValueError, match="is not a subclass of"):
        source_class("json:dumps")
    with pytest.raises(ValueError, match="Source must define `name` and `read`"):
        source_class("shardgraph.convert:Source")
    with pytest.raises(
        ValueError, match="convert has no class 'Absent'; it defines Any, Confidence"
    ):
        source_class("shardgraph.convert:Absent")


def test_name_is_taken_once():
    class Other(Source):
        name = "smiles"

        def read(self, partition):
            yield from (partition,)

    with pytest.raises(ValueError, match="'smiles' exists already"):
        register_source(Other)
    register_source(replace=True)(Other)
    assert source_class("smiles") is Other


def test_only_named_sources_register():
    with pytest.raises(TypeError, match="a subclass of Source with a `name`"):
        register_source(dict)


def test_default_provenance_names_and_digests_the_file(tmp_path):
    path = tmp_path / "a.lines"
    path.write_text("1 2 3\n")
    source = Lines(path)
    assert source.partitions() == [Partition(file=str(path))]
    # xxh3-128 of b"1 2 3\n", as the xxhsum command prints it.
    import xxhash

    digest = xxhash.xxh3_128_hexdigest(b"1 2 3\n")
    assert source.provenance() == {
        "format": "lines",
        "files": [{"name": "a.lines", "bytes": 6, "xxh3_128": digest}],
    }


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("package.module:function", "python"),
        ("some/graphs.py:function", "python"),
        ("bbbp_sample.csv", "smiles"),
        ("sider_sample.csv.gz", "smiles"),
        ("gdb13_sample.smi", "smiles"),
        ("gdb_sample.sdf", "sdf"),
    ],
)
def test_format_is_recognised(data, spec, name):
    pytest.importorskip("rdkit")
    spec = spec if ":" in spec else data / spec
    assert find_source(spec).name == name


def test_unknown_inputs_are_explained(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*missing.csv"):
        find_source(tmp_path / "missing.csv")
    (tmp_path / "a.unknown").write_text("?")
    with pytest.raises(
        ValueError, match=r"cannot tell the format of .* one of python, pyg, smiles"
    ):
        find_source(tmp_path / "a.unknown")
    with pytest.raises(ValueError, match="unknown format 'smile'; known: python, pyg"):
        find_source(tmp_path / "a.unknown", format="smile")
    with pytest.raises(ValueError, match="the pyg source has no option targets; it has trust_pick"):
        find_source(tmp_path / "a.unknown", format="pyg", targets=["y"])


def test_a_folder_of_datasets_and_a_file_of_one_are_told(tmp_path):
    for name in ("B", "A"):
        (tmp_path / "sets" / name).mkdir(parents=True)
        for file in ("A", "graph_indicator"):
            (tmp_path / "sets" / name / f"{name}_{file}.txt").write_text("1, 1\n")
    (tmp_path / "sets" / "README").touch()
    inside = r"sets, but of what is in it: A is tudataset, B is tudataset; give one .* \S+/sets/A$"
    with pytest.raises(ValueError, match=rf"cannot tell the format of \S+/{inside}"):
        find_source(tmp_path / "sets")
    message = (
        r"B_A.txt alone: it is of a dataset in the format tudataset; give its folder, \S+/sets/B$"
    )
    with pytest.raises(ValueError, match=rf"cannot tell the format of \S+/{message}"):
        find_source(tmp_path / "sets" / "B" / "B_A.txt")
    (tmp_path / "sets" / "B" / "notes.md").touch()
    with pytest.raises(ValueError, match=r"format of \S+notes.md: name it as one of python, pyg"):
        find_source(tmp_path / "sets" / "B" / "notes.md")


@pytest.mark.parametrize("name", [name for name in source_names() if name != "python"])
def test_an_absent_path_is_told_by_every_format(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*absent\.db"):
        find_source(tmp_path / "absent.db", format=name)
    assert list(tmp_path.iterdir()) == []


def test_ambiguous_input_lists_what_it_could_be(tmp_path):
    class Greedy(Lines):
        name = "greedy"

        @classmethod
        def recognise(cls, spec):
            return registry.Confidence.CERTAIN if spec.endswith(".pt") else None

    register_source(Greedy)
    with pytest.raises(ValueError, match=r"a.pt could be pyg or greedy: name the format"):
        find_source(tmp_path / "a.pt")


def test_options_left_none_keep_their_default(tmp_path):
    (tmp_path / "a.pt").touch()
    source = find_source(tmp_path / "a.pt", trust_pickle=None)
    assert source.provenance()["options"] == {"trust_pickle": False}


@pytest.mark.parametrize("name", source_names())
def test_options_are_the_parameters(name):
    cls = source_class(name)
    assert cls.name == name
    assert cls.description
    parameters = list(inspect.signature(cls.__init__).parameters.values())[2:]
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters)
    assert [(p.name, p.default) for p in parameters] == [
        (option.name, option.default) for option in cls.options
    ]


def test_listing_formats_loads_neither_torch_nor_format_packages():
    code = (
        "import sys; from shardgraph.convert import source_names, source_class;"
        "print([source_class(n).options for n in source_names()]);"
        "heavy = {'torch', 'torch_geometric', 'rdkit', 'ase', 'h5py', 'lmdb', 'pyarrow', 'yaml',"
        " 'networkx', 'scipy', 'pandas'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
