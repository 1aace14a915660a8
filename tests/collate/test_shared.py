"""Blocks of shared memory that cross between processes."""

import contextlib
import multiprocessing
import os
import pickle

import pytest
import torch

from shardgraph.collate import shared

pytestmark = pytest.mark.skipif(not shared.can_share(), reason="needs memfd_create and /proc")

SIZE = 3 << 20


def make(connection, count, keep):
    """A maker of blocks, each full of its number, that stays until it is told to end."""
    before = len(os.listdir("/proc/self/fd"))
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    for number in range(count):
        block = shared.SharedBlock(SIZE, keep=keep)
        block.tensor.fill_(number)
        connection.send_bytes(pickle.dumps(block))
        del block
    connection.send_bytes(str(len(os.listdir("/proc/self/fd")) - before).encode())
    connection.recv_bytes()


@pytest.fixture
def maker():
    """Starts a maker and gives the connection to it."""
    started = []

    def start(count, keep):
        here, there = multiprocessing.get_context("fork").Pipe()
        process = multiprocessing.get_context("fork").Process(
            target=make, args=(there, count, keep), daemon=True
        )
        process.start()
        started.append((process, here))
        return here, process

    yield start
    for process, connection in started:
        with contextlib.suppress(BrokenPipeError):
            connection.send_bytes(b"end")
        process.join()


def shared_bytes():
    """Bytes of shared memory in use by the whole machine's memory files and /dev/shm."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Shmem:"))


def test_a_block_arrives_and_may_be_written_to(maker):
    connection, _ = maker(3, 8)
    blocks = [pickle.loads(connection.recv_bytes()) for _ in range(3)]
    for number, block in enumerate(blocks):
        assert block.dtype == torch.uint8
        assert block.shape == (SIZE,)
        assert (block == number).all()
        block += 1
        assert (block == number + 1).all()


def test_the_maker_keeps_a_bounded_number_of_descriptors(maker):
    connection, _ = maker(50, 4)
    for number in range(50):
        sent = connection.recv_bytes()
        if number >= 46:
            assert (pickle.loads(sent) == number).all()
    assert connection.recv_bytes() == b"4"


def test_a_block_is_freed_with_its_last_view(maker):
    connection, _ = maker(20, 30)
    kept = [pickle.loads(connection.recv_bytes()) for _ in range(20)]
    full = shared_bytes()
    views = [block[:10] for block in kept]
    del kept
    assert shared_bytes() > full - 10 * SIZE
    del views
    assert shared_bytes() < full - 15 * SIZE  # though the maker still has their descriptors


def test_a_forked_child_does_not_free_a_block(maker):
    connection, _ = maker(1, 4)
    block = pickle.loads(connection.recv_bytes())
    block.fill_(7)
    pid = os.fork()
    if pid == 0:
        del block
        os._exit(0)
    os.waitpid(pid, 0)
    assert (block == 7).all()


def test_a_forked_child_keeps_a_block_that_its_parent_drops(maker):
    connection, _ = maker(1, 4)
    block = pickle.loads(connection.recv_bytes())
    block.fill_(7)
    ask, answer = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(ask[0], 1)
        os.write(answer[1], bytes([int(block[0]), int(block[-1])]))
        os._exit(0)
    del block
    os.write(ask[1], b"!")
    assert os.read(answer[0], 2) == bytes([7, 7])
    os.waitpid(pid, 0)
    for descriptor in (*ask, *answer):
        os.close(descriptor)


def test_a_block_outlives_its_maker(maker):
    connection, process = maker(1, 4)
    block = pickle.loads(connection.recv_bytes())
    process.kill()
    process.join()
    assert (block == 0).all()


def test_a_block_of_an_ended_maker_cannot_be_opened(maker):
    connection, process = maker(1, 4)
    sent = connection.recv_bytes()
    process.kill()
    process.join()
    with pytest.raises(RuntimeError, match="cannot open a batch of worker"):
        pickle.loads(sent)


def test_a_block_is_sent_once():
    block = shared.SharedBlock(10, keep=1)
    pickle.dumps(block)
    with pytest.raises(RuntimeError, match="a shared block is sent once"):
        pickle.dumps(block)
    while shared._sent:
        os.close(shared._sent.popleft())


def test_an_unsent_block_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        block = shared.SharedBlock(100, keep=1)
        assert block.tensor.numel() == 100
        del block
    assert len(os.listdir("/proc/self/fd")) == before
