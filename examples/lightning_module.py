"""PyTorch Lightning: a run that is stopped anywhere goes on with exactly the graphs it had left.

``python examples/lightning_module.py`` trains and saves a checkpoint every 10 steps; stopped and
started again, it resumes from the last one. Lightning saves and restores the loader's state itself.
"""

import argparse
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch_geometric.data import Batch
from training_loop import Model, write_graphs

import shardgraph as sg


class Graphs(lightning.LightningDataModule):
    """Random graphs, 9 in 10 of them to train on; ``options`` are the loaders'."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__()
        self.path, self.options = path, options

    def prepare_data(self) -> None:
        """Runs in one process: writes the graphs, unless they are there."""
        if not (self.path / "manifest.json").exists():
            write_graphs(self.path)

    def setup(self, stage: str) -> None:  # noqa: ARG002
        """Runs in every process."""
        dataset = sg.ShardedDataset(self.path)
        self.train, self.valid = dataset[:0.9], dataset[0.9:]

    def train_dataloader(self) -> sg.GraphLoader:
        """Shuffled batches of the epoch at hand, which Lightning asks for each time."""
        loader = sg.GraphLoader(self.train, shuffle=True, seed=0, **self.options)
        loader.set_epoch(self.trainer.current_epoch)
        return loader

    def val_dataloader(self) -> sg.GraphLoader:
        """Batches in the order of the dataset."""
        return sg.GraphLoader(self.valid, **self.options)


class Regression(lightning.LightningModule):
    """The model of ``training_loop.py``."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch."""
        return torch.nn.functional.mse_loss(self.model(batch), batch.y)

    def validation_step(self, batch: Batch) -> None:
        """Adds a batch to the validation loss."""
        loss = torch.nn.functional.mse_loss(self.model(batch), batch.y)
        self.log("validation loss", loss, batch_size=batch.num_graphs)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    """Trains, from the last checkpoint on if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/random"))
    parser.add_argument("--checkpoints", type=Path, default=Path("data/lightning"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-steps", type=int, default=-1, help="stop there, as if interrupted")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        max_steps=arguments.max_steps,
        callbacks=[
            ModelCheckpoint(arguments.checkpoints, save_last=True, every_n_train_steps=10),
        ],
        reload_dataloaders_every_n_epochs=1,  # between epochs their number is all that is restored
        use_distributed_sampler=False,  # the loader itself gives each rank its part
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = arguments.checkpoints / "last.ckpt"
    trainer.fit(
        Regression(),
        datamodule=Graphs(arguments.data, batch_size=64, num_workers=arguments.workers),
        ckpt_path=last if last.exists() else None,
    )
    loss = trainer.callback_metrics.get("validation loss", torch.nan)
    print(f"step {trainer.global_step}: validation loss {loss:.4f}")


if __name__ == "__main__":
    main()
