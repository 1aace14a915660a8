"""What a loop over a prefetcher sees on the CPU: the loader's batches, order, errors and limits."""

import threading
import time

import pytest
import torch
from prefetch_simulation import PackedList
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from shardgraph.prefetch import DevicePrefetcher


def graphs(count=20):
    generator = torch.Generator().manual_seed(0)
    made = []
    for k in range(count):
        nodes = 2 + k % 5
        made.append(
            Data(
                x=torch.rand(nodes, 3, generator=generator),
                edge_index=torch.randint(nodes, (2, 2 * nodes), generator=generator),
                y=torch.tensor([float(k)]),
            )
        )
    return made


def as_lists(batch):
    return type(batch), {key: value.tolist() for key, value in batch.to_dict().items()}


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_equal_the_unprefetched_ones(depth, shuffle):
    def loader():
        generator = torch.Generator().manual_seed(3)
        return DataLoader(graphs(), batch_size=6, shuffle=shuffle, generator=generator)

    plain, prefetched = loader(), DevicePrefetcher(loader(), "cpu", depth=depth)
    for _ in range(2):
        assert [as_lists(batch) for batch in prefetched] == [as_lists(batch) for batch in plain]


def test_on_the_cpu_the_loaders_own_objects_arrive_unchanged():
    batches = [Batch.from_data_list(graphs(2)), (torch.ones(1), "name"), {"a": 1}]
    arrived = list(DevicePrefetcher(batches, "cpu"))
    assert all(a is b for a, b in zip(arrived, batches, strict=True))


@pytest.mark.parametrize("loader", [[], DataLoader([], batch_size=2)], ids=["list", "DataLoader"])
def test_an_empty_loader_gives_no_batch(loader):
    assert list(DevicePrefetcher(loader, "cpu")) == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_short_loaders_give_all_their_batches(count):
    assert list(DevicePrefetcher(range(count), "cpu", depth=2)) == list(range(count))


def test_packed_batches_are_asked_for_and_unpacked():
    class Loader:
        def __iter__(self):
            raise AssertionError("packed_batches() comes first")

        def packed_batches(self):
            yield PackedList.of([1, 2], [3])
            yield {"plain": torch.ones(1)}

    first, second = DevicePrefetcher(Loader(), "cpu")
    assert [value.tolist() for value in first["values"]] == [[1, 2], [3]]
    assert second == {"plain": torch.ones(1)}


def test_length_dataset_and_batch_size_are_the_loaders():
    loader = DataLoader(graphs(), batch_size=6)
    prefetcher = DevicePrefetcher(loader, "cpu")
    assert len(prefetcher) == len(loader) == 4
    assert prefetcher.dataset is loader.dataset
    assert prefetcher.batch_size == 6
    assert prefetcher.loader is loader


def test_what_the_loader_lacks_is_an_error_that_says_so():
    prefetcher = DevicePrefetcher(iter([1]), "cpu")
    with pytest.raises(TypeError, match="list_iterator"):
        len(prefetcher)
    with pytest.raises(AttributeError, match="'list_iterator' object has no attribute 'dataset'"):
        prefetcher.dataset  # noqa: B018
    for call in ("state_dict", "load_state_dict", "set_epoch"):
        with pytest.raises(AttributeError, match=rf"wrapped list_iterator has no {call}\(\)"):
            getattr(prefetcher, call)(*[] if call == "state_dict" else [{}])


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2"])
@pytest.mark.parametrize("name", ["depth", "max_bytes"])
def test_limits_below_one_are_refused(name, limit):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got {limit!r}"):
        DevicePrefetcher([], "cpu", **{name: limit})


def test_a_loader_must_be_iterable():
    with pytest.raises(TypeError, match="must be an iterable of batches, got 'int'"):
        DevicePrefetcher(3, "cpu")


def test_the_repr_says_what_is_wrapped():
    assert repr(DevicePrefetcher([], "cpu", depth=3)) == (
        "DevicePrefetcher(list, device='cpu', depth=3, max_bytes=None)"
    )


@pytest.mark.parametrize("good", [0, 1, 5])
def test_an_error_comes_after_the_good_batches_with_its_traceback(good):
    def failing_read():
        raise KeyError("lost")

    class Loader:
        def __iter__(self):
            yield from range(good)
            failing_read()

    prefetcher = DevicePrefetcher(Loader(), "cpu", depth=8)
    for _ in range(2):
        seen = []
        with pytest.raises(KeyError, match="lost") as caught:
            seen.extend(batch for batch in prefetcher)
        assert seen == list(range(good))
        assert "failing_read" in [entry.name for entry in caught.traceback]


def test_an_error_of_iter_is_raised_at_once():
    class Loader:
        def __iter__(self):
            raise OSError("no such directory")

    prefetcher = DevicePrefetcher(Loader(), "cpu")
    with pytest.raises(OSError, match="no such directory"):
        iter(prefetcher)
    with pytest.raises(OSError, match="no such directory"):
        iter(prefetcher)


def test_an_exhausted_iterator_stays_exhausted():
    iterator = iter(DevicePrefetcher(range(2), "cpu"))
    assert list(iterator) == [0, 1]
    assert list(iterator) == []


@pytest.mark.parametrize("num_taken", [0, 1, 4])
def test_a_second_loop_ends_the_first_which_cannot_go_on(num_taken):
    prefetcher = DevicePrefetcher(range(4), "cpu")
    iterator = iter(prefetcher)
    assert [next(iterator) for _ in range(num_taken)] == list(range(num_taken))
    assert list(prefetcher) == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"another loop .* has ended this one, since one"):
            next(iterator)


class Shrinking:
    """A loader whose next epoch is known, and shorter, as soon as it has read one to its end."""

    def __init__(self):
        self.count = 3

    def __len__(self):
        return self.count

    def __iter__(self):
        yield from range(self.count)
        self.count -= 1


def test_the_length_is_that_of_the_loop_under_way():
    prefetcher = DevicePrefetcher(Shrinking(), "cpu", depth=10)
    lengths = [len(prefetcher)]
    for _ in range(2):
        for item in prefetcher:
            if item == 0:
                prefetcher._last_thread.join()  # all is read
            lengths.append(len(prefetcher))
        lengths.append(len(prefetcher))
    assert lengths == [3, 3, 3, 3, 2, 2, 2, 1]


class Counting:
    """Yields batches of given sizes and notes how far ahead of the consumer it was asked."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.num_pulled = 0
        self.pulled = threading.Condition()

    def __iter__(self):
        for size in self.sizes:
            with self.pulled:
                self.num_pulled += 1
                self.pulled.notify_all()
            yield torch.zeros(size, dtype=torch.uint8)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_than_depth_batches_are_read_ahead(depth):
    loader = Counting([1] * 20)
    prefetcher = DevicePrefetcher(loader, "cpu", depth=depth)
    for taken, _ in enumerate(prefetcher, start=1):
        allowed = min(20, taken + depth)
        with loader.pulled:
            assert loader.pulled.wait_for(lambda: loader.num_pulled >= allowed, timeout=5)  # noqa: B023
        time.sleep(0.002)  # time for a batch too many
        assert loader.num_pulled == allowed
    assert prefetcher.stats.max_ahead == depth


def test_no_more_than_max_bytes_are_ready_ahead():
    loader = Counting([40, 40, 40, 10, 10, 10, 60, 40, 40])
    prefetcher = DevicePrefetcher(loader, "cpu", depth=4, max_bytes=100)
    seen = []
    for batch in prefetcher:
        time.sleep(0.005)
        seen.append(batch.numel())
    assert seen == loader.sizes
    assert prefetcher.stats.max_ahead_nbytes == 100


def test_a_batch_over_max_bytes_passes_alone():
    loader = Counting([10, 500, 10, 10])
    prefetcher = DevicePrefetcher(loader, "cpu", depth=4, max_bytes=100)
    seen = []
    for batch in prefetcher:
        time.sleep(0.005)
        seen.append(batch.numel())
    assert seen == loader.sizes
    assert prefetcher.stats.max_ahead_nbytes == 500


def test_the_thread_reads_while_the_consumer_works():
    class Slow:
        def __iter__(self):
            for k in range(10):
                time.sleep(0.01)
                yield k

    start = time.perf_counter()
    for _ in DevicePrefetcher(Slow(), "cpu"):
        time.sleep(0.01)
    assert time.perf_counter() - start < 0.17  # 0.2 one after the other


def test_the_loader_is_read_by_one_thread_that_is_not_the_consumers():
    class Loader:
        def __init__(self):
            self.iter_thread = self.read_thread = None

        def __iter__(self):
            self.iter_thread = threading.current_thread().name
            return self._read()

        def _read(self):
            self.read_thread = threading.current_thread().name
            yield 1

    loader = Loader()
    assert list(DevicePrefetcher(loader, "cpu")) == [1]
    assert loader.iter_thread == threading.current_thread().name
    assert loader.read_thread == "shardgraph-prefetch"
