import mmap
import pickle
import threading

import torch

from shardgraph.collate import ReusedMemory
from shardgraph.collate.reuse import KEPT, LARGE


def test_a_block_is_reused_when_its_last_tensor_is_gone():
    allocate = ReusedMemory()
    tensor = allocate(LARGE).tensor
    address = tensor.data_ptr()
    view = tensor[10:20].view(torch.int16)
    del tensor
    assert allocate(LARGE).tensor.data_ptr() != address  # the view still holds it
    del view
    assert allocate(LARGE).tensor.data_ptr() == address


def test_a_buffer_has_the_size_asked_for_and_is_writable():
    allocate = ReusedMemory()
    for nbytes in (0, 1, LARGE - 1, LARGE, 3 * LARGE + 17, LARGE + 1):
        memory = allocate(nbytes)
        memory.tensor.fill_(7)
        assert memory.tensor.shape == (nbytes,)
        assert memory.tensor.untyped_storage().nbytes() == nbytes
        assert memory.sent is memory.tensor
        assert int(memory.tensor.sum()) == 7 * nbytes


def test_tensors_that_are_held_share_no_memory():
    allocate = ReusedMemory()
    held = []
    for number in range(12):
        held.append(allocate(LARGE + number * 4096).tensor.fill_(number))
        if number % 3 == 2:
            del held[0]
    for tensor in held:
        assert (tensor == tensor[0]).all()


def test_only_a_few_free_blocks_are_kept():
    allocate = ReusedMemory()
    held = [allocate(LARGE).tensor for _ in range(3 * KEPT)]
    addresses = {tensor.data_ptr() for tensor in held}
    held.clear()
    again = [allocate(LARGE).tensor for _ in range(3 * KEPT)]
    assert len({tensor.data_ptr() for tensor in again} & addresses) >= KEPT
    again.clear()
    assert len(allocate._free) == KEPT


def test_a_block_that_is_too_small_makes_way_for_a_larger_one():
    allocate = ReusedMemory()
    small = allocate(LARGE).tensor
    del small
    large = allocate(64 * LARGE).tensor
    assert allocate._free == []
    del large
    assert [len(block) >= 64 * LARGE for block in allocate._free] == [True]


def test_free_memory_goes_with_the_allocator_and_held_memory_stays():
    allocate = ReusedMemory()
    free = allocate._free
    tensor = allocate(LARGE).tensor.fill_(3)
    del allocate
    assert int(tensor.sum()) == 3 * LARGE
    del tensor
    assert len(free) == 1
    assert isinstance(free[0], mmap.mmap)


def test_threads_get_memory_of_their_own():
    allocate = ReusedMemory()
    wrong = []

    def work(value: int) -> None:
        for _ in range(50):
            tensor = allocate(LARGE).tensor.fill_(value)
            if not (tensor == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_it_pickles_without_its_blocks():
    allocate = ReusedMemory()
    allocate(LARGE)
    assert pickle.loads(pickle.dumps(allocate))._free == []
