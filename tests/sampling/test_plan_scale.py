"""Ten million graphs: memory and speed of planning."""

import time
import tracemalloc
from collections import deque
from itertools import islice

import numpy as np
import pytest

from shardgraph.sampling import BatchPlan

NUM = 10_000_000
NBYTES = NUM * 2300


def peak_nbytes(**options):
    """Peak memory of a plan, of batches from far inside an epoch, and of reading ahead of them."""
    tracemalloc.start()
    try:
        plan = BatchPlan(NUM, batch_size=256, **options)
        state = plan.state_dict(1, 20_000)
        batches, ahead = plan.batches(*plan.resume(state)), plan.read_ahead(*plan.resume(state))
        deque(islice(batches, 500), maxlen=0)
        deque(islice(ahead, 5), maxlen=0)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_sequential_takes_no_memory():
    assert peak_nbytes() < 200_000


def test_window_takes_memory_by_the_block():
    blocks = NUM // (2**19 // 2300)
    windows = 128 * 228
    assert peak_nbytes(shuffle="window", nbytes=NBYTES) < 8 * (2 * blocks + 8 * windows)


def test_full_takes_one_permutation():
    assert 8 * NUM <= peak_nbytes(shuffle="full") < 8 * NUM + 1_000_000


def test_window_starts_anywhere_at_once():
    plan = BatchPlan(NUM, batch_size=256, shuffle="window", nbytes=NBYTES)
    start = time.perf_counter()
    batch = next(plan.batches(0, 39_000))
    # 0.01 s; an epoch's batches take 0.5 s.
    assert time.perf_counter() - start < 0.2
    later = next(islice(plan.batches(0, 38_990), 10, None))
    assert batch.tolist() == later.tolist()


@pytest.mark.slow
def test_packing_takes_seconds_and_little_memory():
    rng = np.random.default_rng(0)
    nodes = rng.integers(9, 28, NUM, dtype=np.int16)
    start = time.perf_counter()
    tracemalloc.start()
    try:
        plan = BatchPlan(NUM, max_nodes=288, num_nodes=nodes, shuffle="window", nbytes=NBYTES)
        deque(islice(plan.batches(), 20_000), maxlen=0)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    num_batches = plan.num_batches()
    # 2 s on one core.
    assert time.perf_counter() - start < 20
    assert num_batches * 288 * 0.99 < nodes.sum(dtype=np.int64)
