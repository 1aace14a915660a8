"""Datasets made to deceive: how to make one, how it is met, and what is noticed of it."""

import contextlib
import ctypes
import io
import os
import pickle
import resource
import signal
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch_geometric.data import Data

import shardgraph as sg
from shardgraph.cli import main

SHARD = "shard-00000.h5"
Change = Callable[[h5py.File], None]


def graphs() -> list[Data]:
    generator = torch.Generator().manual_seed(5)
    made = []
    for n in (3, 1, 4):
        edges = torch.randint(n, (2, 2 * n), generator=generator)
        x = torch.randn(n, 2, generator=generator)
        made.append(Data(x=x, edge_index=edges, y=float(n), name="n" * n, v=torch.ones(n, n + 1)))
    return made


def write(path: Path, compression: str | None = None) -> Path:
    with sg.DatasetWriter(path, varying=["v"], compression=compression) as writer:
        for data in graphs():
            writer.write(data)
    return path


def sign(root: Path) -> None:
    """Makes the manifest name the file as it is now: what somebody who means harm would do."""
    manifest = sg.Manifest.read(root)
    (entry,) = manifest.shards
    entry = replace(entry, nbytes=(root / SHARD).stat().st_size)
    replace(manifest, shards=(entry,)).write(root)


def forge(root: Path, change: Callable[[h5py.File], None]) -> None:
    with h5py.File(root / SHARD, "r+", libver=("v110", "v110")) as file:
        change(file)
    sign(root)


def replaced(path: str, make: Callable[[h5py.File], Any]) -> Callable[[h5py.File], None]:
    """A change that puts another object in the place of one, its attributes kept."""

    def change(file: h5py.File) -> None:
        attributes = {
            k: v for k, v in file[path].attrs.items() if isinstance(v, (bytes, np.bytes_))
        }
        del file[path]
        made = make(file)
        if made is not None:
            for key, value in attributes.items():
                made.attrs[key] = np.bytes_(value)

    return change


def virtual(file: h5py.File) -> h5py.Dataset:
    layout = h5py.VirtualLayout((8, 2), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "secret", (8, 2))
    return file.create_virtual_dataset("columns/x", layout)


def unallocated(file: h5py.File) -> h5py.Dataset:
    space = h5py.h5s.create_simple((1 << 50, 2))
    made = h5py.h5d.create(file.id, b"columns/x", h5py.h5t.IEEE_F32LE, space)
    return h5py.Dataset(made)


def scalar(file: h5py.File) -> h5py.Dataset:
    return file.create_dataset("columns/x", data=np.float32(1))


def null(file: h5py.File) -> h5py.Dataset:
    return file.create_dataset("columns/x", data=h5py.Empty("f4"))


def compact(file: h5py.File) -> h5py.Dataset:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((8, 2))
    made = h5py.h5d.create(file.id, b"columns/x", h5py.h5t.IEEE_F32LE, space, dcpl=plist)
    return h5py.Dataset(made)


def chunked(shape: tuple[int, ...], chunks: tuple[int, ...], **options: Any) -> Any:
    return lambda file: file.create_dataset("columns/x", shape, "f4", chunks=chunks, **options)


def half_written(file: h5py.File) -> h5py.Dataset:
    made = file.create_dataset("columns/x", (8, 2), "f4", chunks=(4, 2))
    made[:4] = 1.0
    return made


def array(path: str, data: Any, **options: Any) -> Callable[[h5py.File], h5py.Dataset]:
    return lambda file: file.create_dataset(path, data=data, **options)


def attribute(path: str, name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        owner = file[path]
        del owner.attrs[name]
        if value is not None:
            owner.attrs[name] = value

    return change


def external_link(file: h5py.File) -> None:
    file["columns/x"] = h5py.ExternalLink("other.h5", "/secret")


def soft_link(file: h5py.File) -> None:
    file["columns/x"] = h5py.SoftLink("/columns/y")


def linked_group(file: h5py.File) -> None:
    file.move("columns", "hidden")
    file["columns"] = h5py.SoftLink("/hidden")


def external_group(file: h5py.File) -> None:
    del file["columns"]
    file["columns"] = h5py.ExternalLink("other.h5", "/")


def group(file: h5py.File) -> None:
    file.create_group("columns/x")


def dataset_for_group(file: h5py.File) -> None:
    del file["columns"]
    file["columns"] = np.zeros(3)


def foreign_filter(file: h5py.File) -> h5py.Dataset:
    return file.create_dataset("columns/x", data=np.zeros((8, 2), "f4"), compression="lzf")


def delete(path: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__delitem__(path)


def put(path: str, where: Any, value: int) -> Callable[[h5py.File], None]:
    return lambda file: file[path].__setitem__(where, value)


# Meeting it ---------------------------------------------------------------------------------------


def readers(root: Path) -> dict[str, Callable[[], Any]]:
    """Every way to read all of a dataset, each of which opens it anew."""

    def opened(keys: list[str] | None = None) -> sg.ShardedDataset:
        return sg.ShardedDataset(root, keys=keys)

    def one() -> Any:
        dataset = opened()
        return [dataset[i] for i in range(len(dataset))]

    def slow() -> Any:
        dataset = sg.ShardedDataset(
            root, keys=["x", "edge_index", "y"], transform=lambda data: data
        )
        return list(sg.GraphLoader(dataset, batch_size=16))

    return {
        "one": one,
        "many": lambda: opened().__getitems__(range(len(opened()))),
        "batch": lambda: list(sg.GraphLoader(opened(["x", "edge_index", "y"]), batch_size=16)),
        "slow batch": slow,
        "sizes": lambda: opened().sizes,
        "statistics": lambda: opened()[[0, 1, 2]].statistics,
    }


def info(root: Path) -> tuple[int, str]:
    """The exit status of ``shardgraph info``, and all that it says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(["info", str(root)])
    return status, said.getvalue()


@contextlib.contextmanager
def little_memory(more_bytes: int = 192 << 20) -> Iterator[None]:
    """The process may take so many bytes more than it has (Linux), as long as the block runs."""
    if sys.platform != "linux":
        yield
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def in_child(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a forked process.

    Raises:
        AssertionError: if it raises, or if the process dies.
    """
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            torch.set_num_threads(1)
            signal.alarm(100)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = work()
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(result, pipe)
            status = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            raise
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "see the standard error of the process"
    return pickle.loads(data)


# Chunks that do not decode to their size ---------------------------------------------------------


def rewrite_chunk(
    make: Callable[[bytes, int], bytes], mask: int = 0
) -> Callable[[h5py.File], None]:
    """A change of the first stored chunk of ``x``, given it and the bytes it decodes to."""

    def change(file: h5py.File) -> None:
        dset = file["columns/x"]
        nbytes = int(np.prod(dset.chunks)) * dset.dtype.itemsize
        _, raw = dset.id.read_direct_chunk((0, 0))
        dset.id.write_direct_chunk((0, 0), make(raw, nbytes), mask)

    return change


def gzip_of(size: Callable[[int], int]) -> Callable[[bytes, int], bytes]:
    return lambda _, nbytes: zlib.compress(bytes(size(nbytes)), 9)


@cache
def bomb(_: bytes, __: int) -> bytes:
    """256 MiB of zeros in a quarter of a megabyte."""
    packer = zlib.compressobj(9)
    block = bytes(1 << 20)
    return b"".join(packer.compress(block) for _ in range(256)) + packer.flush()


def lz4_of(size: int, block: int, stored: int) -> Callable[[bytes, int], bytes]:
    """An LZ4 chunk that says it decodes to so many bytes, in such blocks."""
    return lambda raw, _: struct.pack(">QII", size, block, stored) + raw[16:]


# Noticing what is read ---------------------------------------------------------------------------

_IN_ACCESS, _IN_OPEN, _IN_NONBLOCK = 1, 0x20, 0x800


class Watch:
    """Notices whether any file of a directory is opened or read (Linux, inotify)."""

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(_IN_NONBLOCK)
        mask = _IN_ACCESS | _IN_OPEN
        if libc.inotify_add_watch(self._descriptor, os.fsencode(directory), mask) < 0:
            raise OSError(ctypes.get_errno(), "no watch")

    def touched(self) -> bool:
        """Whether anything was, since the last call."""
        try:
            return bool(os.read(self._descriptor, 1 << 16))
        except BlockingIOError:
            return False

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
