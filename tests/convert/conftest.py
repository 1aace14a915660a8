import os
import pickle
from pathlib import Path

import pytest

from shardgraph.convert import Reject, find_source

DATA = Path(__file__).resolve().parents[1] / "data"
CASES = Path(
    os.environ.get("SHARDGRAPH_CASES", Path(__file__).resolve().parents[2] / "../shared/cases")
)


@pytest.fixture
def data():
    """The folder of bundled samples."""
    return DATA


@pytest.fixture
def case():
    """Returns the path of a case of real data, or skips the test where there is none."""

    def path_of(name):
        path = CASES / name
        if not path.exists():
            pytest.skip(f"no case {name}: set SHARDGRAPH_CASES to the folder that holds the cases")
        return path

    return path_of


@pytest.fixture
def read_all():
    """Returns (graphs, rejects) of an input, read through a pickled copy of the source."""

    def read(spec, *, size=None, **options):
        source = find_source(spec, **options)
        if size is not None:
            source.records_per_partition = size
        partitions = list(source.partitions())
        source, partitions = pickle.loads(pickle.dumps((source, partitions)))
        items = [list(source.read(partition)) for partition in partitions]
        for partition, found in zip(partitions, items, strict=True):
            assert partition.num_records in (None, len(found))
        items = [item for found in items for item in found]
        graphs = [item for item in items if not isinstance(item, Reject)]
        return graphs, [item for item in items if isinstance(item, Reject)]

    return read


@pytest.fixture
def assert_same():
    """Asserts that two graphs hold the same attributes of the same types and values."""
    import torch

    def check(graph, expected):
        assert type(graph) is type(expected)
        for one, other in zip(graph.stores, expected.stores, strict=True):
            assert set(one.keys()) == set(other.keys())
            for key in one:
                value, wanted = one[key], other[key]
                assert type(value) is type(wanted), key
                if isinstance(value, torch.Tensor):
                    assert value.dtype == wanted.dtype, key
                    assert value.shape == wanted.shape, key
                    assert torch.equal(value, wanted), key
                else:
                    assert value == wanted, key

    return check
