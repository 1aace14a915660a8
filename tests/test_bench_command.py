"""``shardgraph bench``: what it measures, its result line, its plot."""

import json

import pytest
import torch
from torch_geometric.data import Data

import shardgraph as sg
from shardgraph import bench as module
from shardgraph.cli import main


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp("dataset")
    with sg.DatasetWriter(root) as writer:
        for number in range(40):
            writer.write(Data(x=torch.ones(3 + number % 4, 2), y=torch.tensor([number])))
    return root


def test_each_order_and_number_of_workers_is_measured(dataset):
    seen = []
    report = module.bench(
        dataset,
        batch_size=4,
        workers=[0, 1],
        orders=["full", "window"],
        seconds=0.02,
        step_seconds=1e-3,
        device="cpu",
        on_measured=seen.append,
    )
    assert tuple(seen) == report.measurements
    assert [(each.order, each.num_workers) for each in seen] == [
        ("full", 0),
        ("full", 1),
        ("window", 0),
        ("window", 1),
    ]
    for each in seen:
        assert each.stats.num_batches == 20
        assert len(each.stats.waits) == 20
        # 4 graphs have 18 nodes in the mean: x of 8 bytes, batch of 8, y and ptr.
        assert 200 < each.bytes_per_second / each.graphs_per_second * 4 < 600
    line = json.loads(report.to_json())
    assert line["num_graphs"] == 40
    assert line["batches"] == {"batch_size": 4}
    assert line["device"] == "cpu"
    assert [each["num_workers"] for each in line["measurements"]] == [0, 1, 0, 1]


def test_workers_go_up_to_the_cores(monkeypatch):
    monkeypatch.setattr(module, "_num_cores", lambda: 6)
    assert module.worker_counts() == [0, 1, 2, 4]
    monkeypatch.setattr(module, "_num_cores", lambda: 1)
    assert module.worker_counts() == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0.0}, "times must be positive, got seconds=0.0"),
        ({"step_seconds": -1.0}, "step_seconds=-1.0"),
        ({"orders": ["full", "random"]}, "one of sequential, full, window; got random"),
    ],
)
def test_arguments_out_of_range_are_refused(dataset, options, message):
    with pytest.raises(ValueError, match=message):
        module.bench(dataset, **options)


def test_the_command_prints_a_table_and_appends_a_line(dataset, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    text = f"{dataset} --max-nodes 30 --workers 0 --orders sequential --seconds 0.02 --step 1"
    files = ["--json", str(tmp_path / "lines"), "--plot", str(tmp_path / "waits.png")]
    (tmp_path / "lines").write_text("before\n", encoding="utf-8")
    assert main(["bench", *text.split(), *files]) == 0
    title, head, row = capsys.readouterr().out.splitlines()
    assert title == "through DevicePrefetcher; wait: of a loop with steps of 1 ms"
    assert head.split()[:3] == ["order", "workers", "graphs/s"]
    assert row.split()[:2] == ["sequential", "0"]
    before, line = (tmp_path / "lines").read_text(encoding="utf-8").splitlines()
    assert before == "before"
    assert json.loads(line)["batches"] == {"max_nodes": 30}
    assert (tmp_path / "waits.png").read_bytes().startswith(b"\x89PNG")
