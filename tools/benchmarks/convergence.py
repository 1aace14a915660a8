"""``convergence``: does a model get as good with window order and budgets as with a full shuffle?

The task is ESOL, the 1,128 molecules of ``examples/esol``, with the model of the quickstart. So
small a dataset would be one window; the plan is told that its graphs are large, so that a block is
two of them and an epoch takes four windows.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, Report, facts, in_child, measure

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GRAPH_NBYTES = 1 << 18
"""What the plan is told of each graph: half of a block."""

BATCH_SIZE = 32
MEAN_NODES = 13.3
"""Of the molecules of ESOL; a budget of nodes is that of ``BATCH_SIZE`` such molecules."""

LIMITS = {
    f"{BATCH_SIZE} graphs": {"batch_size": BATCH_SIZE},
    "budget of nodes": {"max_nodes": round(BATCH_SIZE * MEAN_NODES)},
}


@dataclass(frozen=True)
class Case:
    """One way to feed the model."""

    data: str
    """Which order the dataset is in: ``as published``, or ``sorted`` by what is to be learned."""
    order: str
    limits: str


COUNTED, BUDGETED = LIMITS
CASES = (
    Case("as published", "full", COUNTED),
    Case("as published", "full", BUDGETED),
    Case("as published", "window", COUNTED),
    Case("as published", "window", BUDGETED),
    Case("sorted", "full", COUNTED),
    Case("sorted", "window", BUDGETED),
    Case("sorted", "none", COUNTED),
)


def convergence(options: Options) -> Report:
    """Errors on held-out molecules after training, over seeds; differences are within a seed."""
    epochs = options.pick(25, 1)
    directory = options.data / "esol"
    in_child(convert, directory)
    cases = {
        (case, seed): partial(in_child, train, directory, case, seed, epochs)
        for case in options.pick(CASES, CASES[::3])
        for seed in range(options.seeds)
    }
    results, failures = measure(cases, 1, progress="convergence")
    rows = []
    for case in dict.fromkeys(case for case, _ in results):
        found = {seed: values[0] for (of, seed), values in results.items() if of == case}
        rows.append({**vars(case), **_summary(case, found, results)})
    return Report(
        question="convergence",
        title=(
            f"convergence: RMSE of ESOL (log mol/L) on held-out molecules after {epochs} epochs, "
            f"{options.seeds} seeds"
        ),
        columns=("data", "order", "limits", "RMSE", "sd", "difference", "standard error"),
        facts=facts(
            options,
            workload="esol",
            order="by row",
            rounds=1,
            seeds=options.seeds,
            epochs=epochs,
            graph_nbytes=GRAPH_NBYTES,
        ),
        rows=rows,
        notes=[
            *failures,
            (
                "difference: from the full shuffle in batches of a fixed number of the same data, "
                "mean over the seeds; a seed fixes the first weights, dropout and order"
            ),
            "window: blocks of 2 graphs, 128 blocks shuffled together",
        ],
        bars=[(f"{row['data']}, {row['order']}, {row['limits']}", row["RMSE"]) for row in rows],
        unit="RMSE, log mol/L",
    )


def _summary(case: Case, found: dict[int, float], results: dict[Any, list[float]]) -> dict:
    """Mean and spread over the seeds, and the mean difference to the full shuffle."""
    row = {"RMSE": statistics.mean(found.values()), "values": list(found.values())}
    row["sd"] = statistics.stdev(found.values()) if len(found) > 1 else None
    base = Case(case.data, "full", COUNTED)
    differences = [
        value - results[base, seed][0] for seed, value in found.items() if (base, seed) in results
    ]
    if case != base and differences:
        row["difference"] = statistics.mean(differences)
        if len(differences) > 1:
            row["standard error"] = statistics.stdev(differences) / len(differences) ** 0.5
    return row


def convert(directory: Path) -> None:
    """In a child: makes the dataset, unless it is there."""
    import shardgraph as sg

    quickstart = _quickstart()
    if not (directory / "manifest.json").exists():
        sg.convert(quickstart.MOLECULES, directory, targets=[quickstart.TARGET], progress=False)


def train(directory: Path, case: Case, seed: int, epochs: int) -> float:
    """In a child: the RMSE of a model on a fifth of the molecules, trained on the others."""
    import numpy as np
    import torch
    from torch.nn.functional import mse_loss
    from torch_geometric.data import Batch

    import shardgraph as sg

    dataset = sg.ShardedDataset(directory)
    shuffled = np.random.default_rng(0).permutation(len(dataset))
    num_train = len(dataset) * 4 // 5
    graphs = list(dataset[np.sort(shuffled[:num_train])])
    if case.data == "sorted":
        graphs.sort(key=lambda graph: graph.y.item())
    test = Batch.from_data_list(list(dataset[shuffled[num_train:]]))
    plan = sg.BatchPlan(
        len(graphs),
        num_nodes=[graph.num_nodes for graph in graphs],
        shuffle=False if case.order == "none" else case.order,
        seed=seed,
        nbytes=len(graphs) * GRAPH_NBYTES,
        **LIMITS[case.limits],
    )
    torch.manual_seed(seed)
    y = torch.cat([graph.y for graph in graphs])
    model = _quickstart().GNN(y.mean(), y.std(), width=64)
    optimizer = torch.optim.Adam(model.parameters())
    num_steps = sum(plan.num_batches(epoch) for epoch in range(epochs))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, num_steps)
    for epoch in range(epochs):
        for positions in plan.batches(epoch):
            batch = Batch.from_data_list([graphs[position] for position in positions])
            optimizer.zero_grad()
            mse_loss(model(batch), batch.y).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return mse_loss(model.eval()(test), test.y).sqrt().item()


def _quickstart() -> Any:
    """The module of the example, which holds the model and names the molecules."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        import quickstart
    finally:
        sys.path.remove(str(EXAMPLES))
    return quickstart
