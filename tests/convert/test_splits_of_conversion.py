import json

import numpy as np
import pytest
import torch
from numbers_source import Numbers, contents, is_even, number_graph

from shardgraph import ConversionError, Manifest, ShardedDataset
from shardgraph.convert import convert
from shardgraph.convert.splits import parse_fractions, random_split


def run(out, source=None, **options):
    return convert(source or Numbers(), out, progress=False, **options)


def members(out):
    """By name of the split, the numbers of its graphs."""
    dataset = ShardedDataset(out)
    return {
        name: [int(data.x[0, 0]) for data in dataset.split(name)]
        for name in Manifest.read(out).splits
    }


def is_odd(data):
    return not is_even(data)


class Given(Numbers):
    """Has a split of its own: thirds of its records."""

    def splits(self):
        return {f"third {i}": np.arange(i, self.count, 3) for i in range(3)}


class Marked(Numbers):
    def graph(self, i):
        data = number_graph(i)
        data.part = "train" if i % 4 else "test"
        data.fold = torch.tensor([i // 50])
        return data


@pytest.mark.parametrize("num_graphs", [0, 1, 7, 1000])
def test_a_random_split_is_disjoint_complete_and_of_its_sizes(num_graphs):
    fractions = {"train": 0.8, "val": 0.1, "test": 0.1}
    found = random_split(fractions, num_graphs, seed=3)
    assert list(found) == list(fractions)
    assert sorted(np.concatenate(list(found.values()))) == list(range(num_graphs))
    assert all(abs(len(found[k]) - f * num_graphs) <= 1 for k, f in fractions.items())
    again = random_split(fractions, num_graphs, seed=3)
    assert all(np.array_equal(found[name], again[name]) for name in fractions)
    other = random_split(fractions, num_graphs, seed=4)
    assert num_graphs < 1000 or not np.array_equal(found["val"], other["val"])


def test_a_split_may_leave_graphs_out():
    found = random_split({"a": 0.25, "b": 0.25}, 100, seed=0)
    assert len(set(found["a"]) | set(found["b"])) == 50


def test_fractions_as_text():
    assert parse_fractions("train=0.8, test=.2") == {"train": 0.8, "test": 0.2}
    for text in ("train", "train=", "=0.5", "train=much", "train=0.5,,test=0.5"):
        with pytest.raises(ValueError, match=r"write a split as train=0\.8,.* got"):
            parse_fractions(text)


def test_a_random_split_is_kept(tmp_path):
    run(tmp_path / "out", split="train=0.7,test=0.3", seed=5, pre_filter=is_even)
    found = members(tmp_path / "out")
    assert sorted(found["train"] + found["test"]) == list(range(0, 100, 2))
    assert (len(found["train"]), len(found["test"])) == (35, 15)
    options = Manifest.read(tmp_path / "out").provenance["conversion"]
    assert (options["split"], options["seed"]) == ({"train": 0.7, "test": 0.3}, 5)
    run(tmp_path / "mapping", split={"train": 0.7, "test": 0.3}, seed=5, pre_filter=is_even)
    assert contents(tmp_path / "out") == contents(tmp_path / "mapping")


@pytest.mark.parametrize("workers", [1, 2])
def test_the_inputs_own_split_follows_its_records(tmp_path, workers):
    bad = {0, 1, 5, 6, 20, 99}
    run(tmp_path / "out", Given(bad=bad), on_error="skip", workers=workers)
    assert members(tmp_path / "out") == {
        f"third {i}": [n for n in range(i, 100, 3) if n not in bad] for i in range(3)
    }


def test_a_rule_goes_before_the_inputs_own_split(tmp_path):
    run(tmp_path / "out", Given(), split={"all": 1.0})
    assert members(tmp_path / "out") == {"all": list(range(100))}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_attribute_tells_the_split(tmp_path, workers):
    run(tmp_path / "text", Marked(bad={3}), split_by="part", on_error="skip", workers=workers)
    assert members(tmp_path / "text") == {
        "test": list(range(0, 100, 4)),
        "train": [i for i in range(100) if i % 4 and i != 3],
    }
    run(tmp_path / "number", Marked(), split_by="fold", workers=workers)
    assert members(tmp_path / "number") == {"0": list(range(50)), "1": list(range(50, 100))}


def test_what_names_no_subset_is_in_none(tmp_path):
    pytest.importorskip("rdkit")
    path = tmp_path / "mol.csv"
    path.write_text("smiles,part\nC,train\nCC,\nCCC,train\n")
    run(tmp_path / "out", path, split_by="part")
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"smiles": ["C", "CC", "CCC"], "part": ["train", None, "train"]})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "mol.parquet")
    run(tmp_path / "parquet", tmp_path / "mol.parquet", split_by="part")
    for out in (tmp_path / "out", tmp_path / "parquet"):
        assert list(Manifest.read(out).splits) == ["train"]
        assert ShardedDataset(out).split("train").indices().tolist() == [0, 2]


@pytest.mark.parametrize("name", ["x", "absent"])
def test_an_attribute_that_cannot_tell_the_split(tmp_path, name):
    with pytest.raises(ConversionError, match=f"graph 1: attribute '{name}' tells the split"):
        run(tmp_path / "out", split_by=name, pre_filter=is_odd)


@pytest.mark.parametrize("kind", ["csv", "sdf", "sdf with a table", "parquet", "extxyz"])
@pytest.mark.parametrize("labels", [("train", "test", "train"), ("0", "2", "0")])
def test_a_column_tells_the_split(tmp_path, kind, labels):
    """One of numbers is then no target."""
    path = tmp_path / f"mol.{kind[:3]}"
    rows = "".join(f"CO,{i}.5,{label}\n" for i, label in enumerate(labels))
    if kind == "csv":
        pytest.importorskip("rdkit")
        path.write_text("smiles,gap,part\n" + rows)
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        path = tmp_path / "mol.parquet"
        columns = {"smiles": ["CO"] * 3, "gap": [0.5, 1.5, 2.5], "part": labels}
        if labels[0] == "0":
            columns["part"] = list(map(int, labels))
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    elif kind == "extxyz":
        pytest.importorskip("ase")
        path = tmp_path / "frames.extxyz"
        line = 'Properties=species:S:1:pos:R:3 gap={}.5 part={} pbc="F F F"'
        path.write_text(
            "".join(f"1\n{line.format(i, label)}\nH 0 0 0\n" for i, label in enumerate(labels))
        )
    else:
        Chem = pytest.importorskip("rdkit.Chem")
        block = Chem.MolToMolBlock(Chem.MolFromSmiles("CO"))
        told = "" if "table" in kind else "> <gap>\n{}.5\n\n> <part>\n{}\n\n"
        texts = [block + told.format(i, label) + "$$$$\n" for i, label in enumerate(labels)]
        path.write_text("".join(texts))
        if "table" in kind:
            (tmp_path / "mol.csv").write_text("name,gap,part\n" + rows)
    run(tmp_path / "out", path, split_by="part")
    dataset = ShardedDataset(tmp_path / "out")
    found = {name: dataset.split(name).indices().tolist() for name in set(labels)}
    assert found == {labels[0]: [0, 2], labels[1]: [1]}
    assert [data.y.flatten().tolist() for data in dataset] == [[0.5], [1.5], [2.5]]
    assert [data.part for data in dataset] == list(labels)


def test_a_file_tells_the_split(tmp_path):
    (tmp_path / "split.json").write_text(json.dumps({"a": [5, 3, 90], "b": [], "c": [4, 40]}))
    run(tmp_path / "out", Numbers(bad={4}), split_file=tmp_path / "split.json", on_error="skip")
    assert members(tmp_path / "out") == {"a": [3, 5, 90], "b": [], "c": [40]}
    (tmp_path / "split.txt").write_text("train\n\ntest\ntrain\n")
    run(tmp_path / "lines", split_file=tmp_path / "split.txt")
    assert members(tmp_path / "lines") == {"train": [0, 3], "test": [2]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": [100]}', r"split 'a' has records 100 to 100, but there are 100, counted from 0"),
        ('{"a": [-1, 3]}', r"split 'a' has records -1 to 3"),
    ],
)
def test_a_wrong_file_is_an_error_and_the_shards_are_kept(tmp_path, text, message):
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(ConversionError, match=message):
        run(tmp_path / "out", split_file=tmp_path / "split.json")
    assert not (tmp_path / "out" / "manifest.json").exists()
    inodes = {p.stat().st_ino for p in (tmp_path / "out" / ".conversion").glob("*.h5")}
    assert len(inodes) == 5
    run(tmp_path / "out", split="a=1")
    assert {p.stat().st_ino for p in (tmp_path / "out").glob("*.h5")} == inodes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": ["x"]}', "must hold names of subsets with numbers of records"),
        (b"[1]", "must hold names of subsets"),
        (b"{", "must hold names of subsets"),
        (b'{"a": 5}', "must hold names of .*: 5 is not a list of integers"),
        (b'{"a": [0.5]}', r"must hold names of .*: \[0\.5\] is not a list"),
        (b'{"a": [true, false]}', r"must hold names of .*: \[True, False\] is not a list"),
        (b'{"a": [[0, 1]]}', r"must hold names of .*: \[\[0, 1\]\] is not a list"),
        (b'{"a": [99999999999999999999]}', "must hold names of .*: .* too large"),
        (b'{"a": [0], "\xe4": [1]}', "split.json is not text in UTF-8: .* byte 0xe4"),
    ],
)
def test_a_file_that_holds_no_split_is_told_before_any_work(tmp_path, text, message):
    (tmp_path / "split.json").write_bytes(text)
    with pytest.raises(ConversionError, match=message):
        run(tmp_path / "out", split_file=tmp_path / "split.json")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["split.json", "split.txt"])
def test_a_file_may_begin_with_a_byte_order_mark(tmp_path, name):
    text = '{"train": [0, 2]}' if name.endswith("json") else "train\r\n\r\ntrain\r\n"
    (tmp_path / name).write_text("\ufeff" + text, newline="")
    run(tmp_path / "out", split_file=tmp_path / name)
    assert members(tmp_path / "out") == {"train": [0, 2]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": {"a": 0.6, "b": 0.5}}, "must be positive and make at most 1"),
        ({"split": {"a": 0.0}}, "must be positive and make at most 1"),
        ({"split": {"a": 1.0}, "split_by": "x"}, "not two"),
        ({"split": "a=0.5,a=0.3"}, "the split names 'a' twice"),
        ({"split": "a=1", "seed": -1}, "the seed of a split must not be negative, got -1"),
        ({"shuffle": -1}, "shuffle takes a seed that is not negative, got -1"),
        ({"split": "scaffold"}, "a Source has its format and options already"),
    ],
)
def test_wrong_rules(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "out", **options)
    with pytest.raises(FileNotFoundError, match="no such file"):
        run(tmp_path / "out", split_file=tmp_path / "absent.json")
