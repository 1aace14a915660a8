"""What the tests of whole programs share."""

from collections.abc import Iterator

import pytest
import torch
from numbered import write

import shardgraph as sg


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> sg.ShardedDataset:
    """41 numbered graphs."""
    return sg.ShardedDataset(write(tmp_path_factory.mktemp("numbered")))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Several threads on busy cores wait for each other at every small operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
