"""The device protocol, on a simulated device: which calls, in which order, and why."""

import pytest
import torch
from prefetch_simulation import PackedList, SimulatedBackend
from torch_geometric.data import Batch, Data

from shardgraph.prefetch import DevicePrefetcher

NUM_BATCHES = 40


def tensors():
    return [torch.arange(100) + 1000 * k for k in range(NUM_BATCHES)]


def packed():
    class Loader(list):
        def packed_batches(self):
            return iter([PackedList.of(list(range(k, k + 60)), [k]) for k in range(NUM_BATCHES)])

    return Loader()


def read_all(backend, loader, *, depth=2, pick=lambda batch: batch):
    """What the consumer's kernels read, when each batch is dropped right after its launch."""
    seen = []
    for batch in DevicePrefetcher.with_backend(loader, backend, depth=depth):
        backend.launch_read(pick(batch), seen)
        del batch
    backend.finish()
    return seen


@pytest.mark.parametrize("slow", ["consumer", "copy"])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_consumer_reads_what_the_loader_yielded(slow, depth):
    seen = read_all(SimulatedBackend(slow=slow), tensors(), depth=depth)
    assert torch.equal(torch.stack(seen), torch.stack(tensors()))


@pytest.mark.parametrize("slow", ["consumer", "copy"])
def test_the_consumer_reads_what_a_packed_batch_holds(slow):
    seen = read_all(SimulatedBackend(slow=slow), packed(), pick=lambda batch: batch["values"][0])
    assert [part.tolist() for part in seen] == [list(range(k, k + 60)) for k in range(NUM_BATCHES)]


@pytest.mark.parametrize(
    ("slow", "missing"),
    [
        pytest.param("copy", "waits", id="consumer_does_not_wait_for_the_copy"),
        pytest.param("consumer", "keeps", id="memory_is_reused_under_the_consumer"),
    ],
)
def test_each_part_of_the_hand_over_is_needed(slow, missing):
    backend = SimulatedBackend(slow=slow, **{missing: False})
    seen = read_all(backend, tensors())
    assert not torch.equal(torch.stack(seen), torch.stack(tensors()))


@pytest.mark.parametrize("host_waits", [True, False])
def test_staging_is_reused_only_after_its_copies(host_waits):
    # All batches are kept and read after all copies, so that only the staging can be at fault; the
    # consumer's waits would run the copies in time.
    backend = SimulatedBackend(slow="copy", waits=False, host_waits=host_waits)
    batches = list(DevicePrefetcher.with_backend(tensors(), backend, depth=2))
    backend.finish()
    assert torch.equal(torch.stack(batches), torch.stack(tensors())) == host_waits


def test_calls_and_their_order_for_one_batch():
    backend = SimulatedBackend()
    for _ in DevicePrefetcher.with_backend([torch.arange(3)], backend, depth=1):
        pass
    assert backend.log == [
        ("begin_epoch", "MainThread"),
        ("thread_context", "shardgraph-prefetch"),
        ("pinned_buffer", 64),
        ("copy", 24, True, True),
        ("record", 1),
        ("wait", 1),
        ("keep", 1),
    ]


def test_a_pyg_batch_is_staged_whole_and_each_tensor_copied_once():
    graphs = [Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]])) for _ in range(2)]
    batch = Batch.from_data_list(graphs)
    backend = SimulatedBackend()
    (moved,) = DevicePrefetcher.with_backend([batch], backend, depth=1)
    names = ["x", "edge_index", "batch", "ptr"]
    assert [entry for entry in backend.log if entry[0] == "copy"] == [
        ("copy", batch[name].nbytes, True, True) for name in names
    ]
    assert backend.log[-2:] == [("wait", 1), ("keep", 4)]
    assert type(moved) is type(batch)
    assert moved.keys() == batch.keys()
    assert all(torch.equal(moved[name], batch[name]) for name in names)
    assert not any(backend.holds(batch[name]) for name in names)


def test_a_packed_batch_is_one_transfer_and_one_block():
    backend = SimulatedBackend()

    class Loader(list):
        def packed_batches(self):
            return iter([PackedList.of([1, 2], [3], note="host")])

    (batch,) = DevicePrefetcher.with_backend(Loader(), backend, depth=1)
    assert [part.tolist() for part in batch["values"]] == [[1, 2], [3]]
    assert batch["note"] == "host"
    assert [entry for entry in backend.log if entry[0] in ("copy", "keep")] == [
        ("copy", 24, True, True),
        ("keep", 1),
    ]


def test_pinned_memory_is_copied_from_where_it_is():
    backend = SimulatedBackend()
    source = backend.pinned_buffer(80).view(torch.int64)
    source.copy_(torch.arange(10))
    backend.log.clear()
    (moved,) = DevicePrefetcher.with_backend([source], backend)
    assert backend.names() == ["begin_epoch", "thread_context", "copy", "record", "wait", "keep"]
    assert ("copy", 80, True, True) in backend.log
    assert torch.equal(moved, torch.arange(10))


def test_a_tensor_already_there_is_handed_over_without_a_copy():
    backend = SimulatedBackend()
    there = backend.to_device(torch.arange(4), non_blocking=False)
    backend.log.clear()
    (batch,) = DevicePrefetcher.with_backend([there], backend)
    assert batch is there
    assert backend.names() == ["begin_epoch", "thread_context", "record", "wait", "keep"]


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.arange(6).view(2, 3).t(), id="strided"),
        pytest.param(torch.ones(2, requires_grad=True), id="requires_grad"),
    ],
)
def test_what_cannot_be_staged_is_copied_blocking(tensor):
    backend = SimulatedBackend(slow="copy")
    (moved,) = DevicePrefetcher.with_backend([tensor], backend)
    assert ("copy", tensor.nbytes, False, False) in backend.log
    assert torch.equal(moved, tensor)


def test_staging_is_a_ring_of_depth_plus_one_and_grows():
    backend = SimulatedBackend()
    sizes = [8, 8, 8, 8, 100, 100, 100, 100, 8]
    loader = [torch.zeros(size, dtype=torch.int64) for size in sizes]
    for _ in DevicePrefetcher.with_backend(loader, backend, depth=2):
        pass
    assert [entry[1] for entry in backend.log if entry[0] == "pinned_buffer"] == [
        *(64, 64, 64),
        *(1024, 1024, 1024),
    ]
    # The fourth batch takes the slot of the first, and so on.
    assert [entry[1] for entry in backend.log if entry[0] == "host_wait"] == [1, 2, 3, 4, 5, 6]


def test_staging_and_stream_live_across_epochs():
    backend = SimulatedBackend()
    prefetcher = DevicePrefetcher.with_backend([torch.arange(8)] * 5, backend, depth=1)
    for _ in range(3):
        assert len(list(prefetcher)) == 5
    assert backend.names().count("pinned_buffer") == 2
    assert backend.names().count("begin_epoch") == 3


def test_a_failed_copy_still_guards_its_staging():
    class Failing(SimulatedBackend):
        def to_device(self, tensor, *, non_blocking):
            if tensor.numel() == 13:
                raise MemoryError("the device is full")
            return super().to_device(tensor, non_blocking=non_blocking)

    backend = Failing()
    prefetcher = DevicePrefetcher.with_backend([[torch.arange(2), torch.arange(13)]], backend)
    with pytest.raises(MemoryError, match="the device is full"):
        list(prefetcher)
    assert backend.names()[-1] == "record"


def test_an_object_that_cannot_keep_its_memory_moves_on_the_consumers_stream():
    class Frame:
        device = "cpu"

        def pin_memory(self):
            return self

        def to(self, device):
            self.device = str(device)
            return self

    frame = Frame()
    backend = SimulatedBackend()
    (moved,) = DevicePrefetcher.with_backend([{"frame": frame}], backend)
    assert moved["frame"].device == "cuda:0"
    assert frame.device == "cpu"
    assert ("consumer_context",) in backend.log


def test_device_waits_are_counted_when_they_are_known():
    backend = SimulatedBackend()
    prefetcher = DevicePrefetcher.with_backend([torch.arange(3)] * 4, backend)
    assert len(list(prefetcher)) == 4
    backend.finish()
    assert prefetcher.stats.device_wait_seconds == 1.0
