"""Lightning trains from the loader, saves its state and goes on with exactly the graphs left."""

import importlib
import logging
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from numbered import orders

import shardgraph as sg

lightning = pytest.importorskip("pytorch_lightning")

pytestmark = [
    # Lightning 2.6 with torch 2.13.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
    # It advises as many workers as there are cores.
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUM_EPOCHS = 3


@pytest.fixture(scope="module", autouse=True)
def quiet():
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


@pytest.fixture(scope="module")
def example():
    """The module of the example."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module("lightning_module")
    finally:
        sys.path.remove(str(EXAMPLES))


class Watch(lightning.Callback):
    """Notes epoch, number and graphs of each batch; saves checkpoints of three kinds."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.seen: list[tuple[int, int, list[int]]] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        del module, outputs
        self.seen.append((trainer.current_epoch, batch_idx, batch.number.tolist()))
        if batch_idx + 1 == trainer.num_training_batches:
            self.save(trainer, "last")
        elif trainer.global_step % 7 == 2:
            self.save(trainer, "within")

    def on_train_epoch_end(self, trainer, module):
        del module
        self.save(trainer, "end")

    def save(self, trainer: Any, kind: str) -> None:
        if self.folder is not None:
            trainer.save_checkpoint(self.folder / f"{trainer.global_step} {kind}.ckpt")


def fit(model: Any, watch: Watch, *, data: dict[str, Any], **options: Any) -> Any:
    """The trained weights; ``options`` are of ``Trainer.fit``."""
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        callbacks=[watch],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=NUM_EPOCHS,
        reload_dataloaders_every_n_epochs=int("datamodule" in data),
        use_distributed_sampler=False,
    )
    trainer.fit(model, **data, **options)
    return [parameter.tolist() for parameter in model.parameters()]


def check_continuation(
    model: type,
    make: Callable[[], dict[str, Any]],
    loader: sg.GraphLoader,
    folder: Path,
    *kinds: str,
) -> None:
    """A run reads what a plain loop reads, and so does one resumed from its checkpoints."""
    expected = [
        (epoch, index, batch.number.tolist())
        for epoch in range(NUM_EPOCHS)
        for index, batch in enumerate(loader)
    ]
    watch = Watch(folder)
    weights = fit(model(), watch, data=make())
    assert watch.seen == expected
    for kind in kinds:
        steps = sorted(int(path.stem.split()[0]) for path in folder.glob(f"* {kind}.ckpt"))
        assert len(steps) >= 2
        for step in steps[:2]:
            watch = Watch()
            path = folder / f"{step} {kind}.ckpt"
            found = fit(model(), watch, data=make(), ckpt_path=path)
            assert (path.stem, watch.seen) == (path.stem, expected[step:])
            assert found == weights


@pytest.mark.parametrize(
    ("num_workers", "kinds"), [(0, ["within", "last", "end"]), (2, ["within"])], ids=repr
)
def test_the_example_goes_on_from_any_checkpoint(dataset, example, tmp_path, num_workers, kinds):
    def make() -> dict[str, Any]:
        options = {"batch_size": 6, "num_workers": num_workers}
        return {"datamodule": example.Graphs(dataset.directory, **options)}

    loader = sg.GraphLoader(dataset[:0.9], 6, shuffle=True)
    check_continuation(example.Regression, make, loader, tmp_path, *kinds)


def growing_loader(graphs: sg.ShardedDataset) -> tuple[sg.GraphLoader, dict[str, int]]:
    """A loader whose first epoch has fewer batches than another, and its budgets."""
    for max_nodes, max_edges in product(range(5, 12), range(3, 12)):
        budgets = {"max_nodes": max_nodes, "max_edges": max_edges}
        loader = sg.GraphLoader(graphs, shuffle=True, **budgets)
        counts = [loader.plan.num_batches(epoch) for epoch in range(NUM_EPOCHS)]
        if counts[0] < max(counts):
            return loader, budgets
    pytest.fail("all epochs have equally many batches, so the test would show nothing")


def test_with_budgets_lightning_has_to_count_each_epoch(dataset, example, tmp_path):
    """From a last batch Lightning does not go on well, when the next epoch is longer."""
    loader, budgets = growing_loader(dataset[:0.9])

    def make() -> dict[str, Any]:
        return {"datamodule": example.Graphs(dataset.directory, **budgets)}

    check_continuation(example.Regression, make, loader, tmp_path, "within", "end")


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_loader_alone_goes_on_within_an_epoch(dataset, example, tmp_path, prefetch):
    def make() -> dict[str, Any]:
        loader: Any = sg.GraphLoader(dataset, 4, shuffle=True)
        if prefetch:
            loader = sg.DevicePrefetcher(loader, "cpu", depth=3)
        return {"train_dataloaders": loader, "val_dataloaders": sg.GraphLoader(dataset[:9], 4)}

    loader = sg.GraphLoader(dataset, 4, shuffle=True)
    if prefetch:
        # Lightning tries an iterator of what is no DataLoader: the first epoch goes to that.
        loader.set_epoch(1)
    check_continuation(example.Regression, make, loader, tmp_path, "within", "last")


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_the_example_itself_resumes_from_its_last_checkpoint(
    example, tmp_path, monkeypatch, capsys
):
    def run(checkpoints: str, *options: str) -> str:
        folders = ["--data", tmp_path / "data", "--checkpoints", tmp_path / checkpoints]
        arguments = [*folders, "--workers", "0", "--epochs", "2", *options]
        monkeypatch.setattr(sys, "argv", ["lightning_module.py", *map(str, arguments)])
        example.main()
        return capsys.readouterr().out

    state = torch.get_rng_state()
    assert run("stopped", "--max-steps", "43").startswith("step 43: ")
    whole = run("whole")
    assert whole.startswith("step 58: validation loss 0.0")
    assert run("stopped") == whole
    torch.set_rng_state(state)


def test_predictions_come_in_the_order_of_the_dataset(dataset):
    """Behind a prefetcher: Lightning would build any ``DataLoader`` anew, with its own sampler."""

    class Numbers(lightning.LightningModule):
        def predict_step(self, batch):
            return batch.number.tolist()

    trainer = lightning.Trainer(accelerator="cpu", enable_progress_bar=False, logger=False)
    loader = sg.GraphLoader(dataset, 6)
    assert trainer.predict(Numbers(), sg.DevicePrefetcher(loader, "cpu")) == orders(loader)
