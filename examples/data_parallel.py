"""Data-parallel training: the ranks share each step's graphs, and all take as many steps.

``python examples/data_parallel.py`` starts two processes on this machine; so does, as on a cluster,
``torchrun --standalone --nproc-per-node=2 examples/data_parallel.py``.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.run import main as torchrun
from torch.nn.parallel import DistributedDataParallel
from training_loop import Model, write_graphs

import shardgraph as sg


def train(data: Path, epochs: int, device: torch.device | str) -> None:
    """Trains as one of several processes; the first one reports."""
    # Rank and number of ranks come from torch.distributed. Batches of a step are alike in cost.
    dataset = sg.ShardedDataset(data)
    loader = sg.GraphLoader(dataset, max_nodes=1000, shuffle=True, seed=0)
    batches = sg.DevicePrefetcher(loader, device)
    model = DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, epochs + 1):
        total = num_graphs = 0
        for batch in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), batch.y)
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.num_graphs
            num_graphs += batch.num_graphs
        totals = torch.tensor([total, num_graphs], device=device)
        distributed.all_reduce(totals)
        if distributed.get_rank() == 0:
            print(
                f"epoch {epoch}: loss {totals[0] / totals[1]:.4f}, {totals[1]:,.0f} graphs by "
                f"{distributed.get_world_size()} ranks in {len(batches)} steps each"
            )


def main() -> None:
    """Joins the other processes, trains with them, and leaves them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/random"))
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    has_gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpus else "cpu"
    distributed.init_process_group("nccl" if has_gpus else "gloo")
    torch.manual_seed(0)
    if distributed.get_rank() == 0:
        write_graphs(arguments.data)
    distributed.barrier()
    train(arguments.data, arguments.epochs, device)
    distributed.barrier()
    # The model is gone by now. Were it the last to refer to the group, that would be destroyed
    # while the interpreter is held, for which a thread of gloo may wait, for ever.
    distributed.destroy_process_group()


if __name__ == "__main__":
    if distributed.is_torchelastic_launched():
        main()
    else:
        torchrun(["--standalone", "--nproc-per-node=2", *sys.argv])
