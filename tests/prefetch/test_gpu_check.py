"""The device check's own code: in small on the CPU, and on a simulated device."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from prefetch_simulation import SimulatedBackend


@pytest.fixture(scope="module")
def gpu_check():
    path = Path(__file__).resolve().parents[2] / "tools" / "gpu_check.py"
    spec = importlib.util.spec_from_file_location("gpu_check", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_check"]


def test_the_self_test_runs_every_check_and_judges_contents_alone(gpu_check, capsys):
    assert gpu_check.main(["--self-test"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    record = json.loads(last)
    assert record["self_test"] is True
    assert record["kept"] is None
    checks = {row["check"]: row for row in record["rows"]}
    for words in ("slow consumer", "slow copies", "GraphLoader", "PyG DataLoader"):
        (row,) = [row for check, row in checks.items() if f"contents, {words}" in check]
        assert (row["figure"], row["kept"]) == ("0 wrong elements", True)
    others = [row for check, row in checks.items() if not check.startswith("contents")]
    assert len(others) == 9
    assert [row["kept"] for row in others] == [None] * 9
    assert any(line.startswith("compute |") for line in table)


def test_without_cuda_it_says_so(gpu_check, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(("missing", "kept"), [([], True), (["wait"], False)])
def test_a_missing_wait_is_found(gpu_check, missing, kept, monkeypatch):
    def simulated(runtime, **options):
        return gpu_check.Checked(SimulatedBackend(slow="copy"), runtime, **options)

    monkeypatch.setattr(gpu_check, "checked", simulated)
    findings = gpu_check.Findings(on_device=True)
    gpu_check.check_contents(gpu_check.Cpu(), gpu_check.SMALL, findings, missing)
    assert [row.kept for row in findings.rows] == [kept, kept]


def test_a_wrong_element_ends_in_status_1(gpu_check, capsys, monkeypatch):
    real = gpu_check.batch_of

    def spoiled(base, k):
        batch = real(base, k)
        if k == 7:
            batch.edge_index[1, 3] += 1
        return batch

    monkeypatch.setattr(gpu_check, "batch_of", spoiled)
    assert gpu_check.main(["--self-test", "--no-handover"]) == 1
    output = capsys.readouterr().out
    assert "1 wrong elements" in output
    assert json.loads(output.splitlines()[-1])["no_handover"] == ["wait", "keep"]


def test_shared_time_and_timeline(gpu_check):
    copies, computes = [(0.0, 1.0), (2.0, 4.0)], [(0.5, 2.5), (3.0, 3.5)]
    assert gpu_check.shared_seconds(copies, computes) == 0.5 + 0.5 + 0.5
    assert gpu_check.draw({"copy": copies, "compute": computes}, width=9).splitlines() == [
        "copy    |000 11111|",
        "compute | 0000011 |",
        "         4000.0 ms",
    ]
