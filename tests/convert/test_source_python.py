import sys

import pytest

from shardgraph.convert import find_source
from shardgraph.errors import ConversionError

GRAPHS = """
import torch
from dataclasses import dataclass
from torch_geometric.data import Data
from shardgraph.convert import Reject
import helper

@dataclass
class Spec:
    num: "int" = 3

def graphs():
    for i in range(Spec().num):
        yield Data(x=torch.full((i + 1, 1), helper.VALUE))

def sized(count, value="0"):
    return [Data(num_nodes=int(count), value=value)]

def failing():
    yield from graphs()
    raise KeyError("no such molecule")

def wrong():
    yield Data(num_nodes=1)
    yield "a string"

def rejecting():
    yield Data(num_nodes=1)
    yield Reject(file="raw.bin", record=7, reason="too long")

def nothing():
    return None
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "helper.py").write_text("VALUE = 2.5\n")
    (tmp_path / "graphs.py").write_text(GRAPHS)
    before, modules = list(sys.path), set(sys.modules)
    yield tmp_path / "graphs.py"
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if name in {"helper", "graphs"} or name.startswith("_shardgraph_"):
            del sys.modules[name]


def test_function_of_a_file(file, read_all):
    graphs, rejects = read_all(f"{file}:graphs")
    assert [graph.x.tolist() for graph in graphs] == [[[2.5]] * (i + 1) for i in range(3)]
    assert rejects == []
    assert sys.path[-1] == str(file.parent)  # for what the function imports when it is called


def test_function_of_a_module(file, read_all, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.delitem(sys.modules, "graphs", raising=False)
    graphs, _ = read_all("graphs:sized", args=["4", "b"])
    assert [(graph.num_nodes, graph.value) for graph in graphs] == [(4, "b")]
    assert find_source("graphs:sized", args=["4"]).provenance() == {
        "format": "python",
        "files": [],
        "function": "graphs:sized",
        "options": {"args": ["4"]},
    }


def test_provenance_of_a_file_has_no_path(file):
    told = find_source(f"{file}:graphs").provenance()
    assert told["function"] == "graphs.py:graphs"
    assert [entry["name"] for entry in told["files"]] == ["graphs.py"]


def test_function_may_reject_records(file, read_all):
    graphs, rejects = read_all(f"{file}:rejecting")
    assert len(graphs) == 1
    assert [str(reject) for reject in rejects] == ["raw.bin, line 7: too long"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("failing", "graphs.py:failing failed at record 3: KeyError: 'no such molecule'"),
        ("wrong", "graphs.py:wrong yielded str as record 1, not a graph"),
        ("nothing", "returned NoneType, not an iterable of graphs"),
    ],
)
def test_failures_name_function_and_record(file, read_all, function, message):
    with pytest.raises(ConversionError, match=message) as caught:
        read_all(f"{file}:{function}")
    assert (function != "failing") or isinstance(caught.value.__cause__, KeyError)


def test_wrong_names(file, read_all, tmp_path):
    with pytest.raises(ValueError, match="no function 'absent'; it defines Data, Reject, Spec"):
        read_all(f"{file}:absent")
    with pytest.raises(ValueError, match=r"no such file: .*none.py"):
        read_all(f"{tmp_path}/none.py:graphs")
    with pytest.raises(ValueError, match="does not name a function"):
        read_all("graphs.py", format="python")
    with pytest.raises(ValueError, match="cannot load no_such_module:graphs: No module named"):
        read_all("no_such_module:graphs")
