"""Converts with the workers of a Dask cluster: any executor of ``concurrent.futures`` will do."""

import argparse
from pathlib import Path

from dask.distributed import Client, LocalCluster

import shardgraph as sg

MOLECULES = Path(__file__).resolve().parent / "esol" / "delaney-processed.csv"
TARGET = "measured log solubility in mols per litre"


def main() -> None:
    """Starts a cluster of two processes here; a real one has the same interface."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/esol-dask"))
    out = parser.parse_args().data
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        report = sg.convert(
            MOLECULES,
            out,
            targets=[TARGET],
            executor=client.get_executor(),
            overwrite=True,
            progress=False,
        )
        print(f"{report.graphs:,} graphs by {len(cluster.workers)} Dask workers")


# Workers start as new processes that import this file: only the program itself must start more.
if __name__ == "__main__":
    main()
