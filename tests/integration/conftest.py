"""What the tests of whole programs share."""

import pytest
from numbered import write

import shardgraph as sg


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> sg.ShardedDataset:
    """41 numbered graphs."""
    return sg.ShardedDataset(write(tmp_path_factory.mktemp("numbered")))
