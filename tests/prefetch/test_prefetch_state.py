import json

import pytest

from shardgraph.prefetch import DevicePrefetcher


class Resumable:
    """A loader of the integers of an epoch, with a cursor and a call count."""

    def __init__(self, count=6):
        self.count, self.epoch, self.cursor = count, 0, 0
        self._resumed = False
        self.num_state_calls = 0

    def __iter__(self):
        if not self._resumed:
            self.cursor = 0
        self._resumed = False
        return self._read()

    def _read(self):
        while self.cursor < self.count:
            self.cursor += 1
            yield 100 * self.epoch + self.cursor - 1

    def set_epoch(self, epoch):
        self.epoch, self.cursor = epoch, 0

    def state_dict(self):
        self.num_state_calls += 1
        return {"epoch": self.epoch, "cursor": self.cursor}

    def load_state_dict(self, state):
        self.epoch, self.cursor = state["epoch"], state["cursor"]
        self._resumed = True


@pytest.mark.parametrize("depth", [1, 3, 10])
def test_the_state_is_that_of_the_batches_delivered(depth):
    prefetcher = DevicePrefetcher(Resumable(), "cpu", depth=depth)
    states = [prefetcher.state_dict() for _ in prefetcher]
    assert states == [{"epoch": 0, "cursor": k + 1} for k in range(6)]
    assert prefetcher.state_dict() == {"epoch": 0, "cursor": 6}


def test_before_the_first_batch_it_is_the_state_at_the_start_of_the_epoch():
    prefetcher = DevicePrefetcher(Resumable(), "cpu")
    assert prefetcher.state_dict() == {"epoch": 0, "cursor": 0}
    assert len(list(prefetcher)) == 6
    iterator = iter(prefetcher)
    assert prefetcher.state_dict() == {"epoch": 0, "cursor": 0}
    iterator.close()


@pytest.mark.parametrize("delivered", range(7))
def test_resuming_gives_exactly_the_rest(delivered):
    first = DevicePrefetcher(Resumable(), "cpu", depth=3)
    iterator = iter(first)
    begun = [next(iterator) for _ in range(delivered)]
    state = json.loads(json.dumps(first.state_dict()))
    iterator.close()

    second = DevicePrefetcher(Resumable(), "cpu", depth=2)
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert begun + list(second) == list(range(6))
    assert list(second) == list(range(6))


def test_loading_a_state_ends_the_loop_under_way():
    prefetcher = DevicePrefetcher(Resumable(), "cpu")
    iterator = iter(prefetcher)
    assert next(iterator) == 0
    prefetcher.load_state_dict({"epoch": 2, "cursor": 4})
    assert list(iterator) == []
    assert list(prefetcher) == [204, 205]


def test_the_epoch_is_passed_on():
    prefetcher = DevicePrefetcher(Resumable(count=2), "cpu")
    assert list(prefetcher) == [0, 1]
    prefetcher.set_epoch(3)
    assert prefetcher.state_dict() == {"epoch": 3, "cursor": 0}
    assert list(prefetcher) == [300, 301]


def test_the_state_is_asked_for_once_a_batch():
    loader = Resumable()
    prefetcher = DevicePrefetcher(loader, "cpu")
    for _ in prefetcher:
        prefetcher.state_dict()
    assert loader.num_state_calls == 6 + 2  # and at the start and the end
