"""A training that can be stopped at any moment and goes on with exactly the graphs that are left.

Run ``python examples/resume.py``, press Ctrl-C or kill it, and run it again: the losses are those
of a training that was never stopped.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from training_loop import Model, write_graphs

import shardgraph as sg


def save(path: Path, **parts: Any) -> None:
    """Writes a checkpoint whole or not at all."""
    torch.save(parts, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def main() -> None:
    """Trains, keeps a checkpoint of every so many steps, and begins with the one it finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/random"))
    parser.add_argument("--checkpoint", type=Path, default=Path("data/checkpoint.pt"))
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    if not arguments.data.exists():
        write_graphs(arguments.data)

    dataset = sg.ShardedDataset(arguments.data)
    train, validation = dataset[:0.9], dataset[0.9:]
    loader = sg.GraphLoader(train, batch_size=64, shuffle=True, seed=0)
    batches = sg.DevicePrefetcher(loader)
    torch.manual_seed(0)
    model = Model().to(batches.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done = 0
    if arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.load_state_dict(saved["loader"])
        done = saved["done"]
        print(f"going on after {done} steps, in epoch {loader.epoch}")

    for epoch in range(loader.epoch, arguments.epochs):
        for batch in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), batch.y)
            loss.backward()
            optimizer.step()
            done += 1
            if done % arguments.every == 0:
                save(
                    arguments.checkpoint,
                    model=model.state_dict(),
                    optimizer=optimizer.state_dict(),
                    loader=batches.state_dict(),  # of the batch in use, however many are ahead
                    done=done,
                )
        with torch.no_grad():
            errors = [
                (model(batch) - batch.y).square().sum()
                for batch in sg.DevicePrefetcher(sg.GraphLoader(validation, 256), batches.device)
            ]
        print(f"epoch {epoch}: validation loss {sum(errors).item() / len(validation):.6f}")


if __name__ == "__main__":
    main()
