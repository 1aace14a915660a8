"""Reads files of ``torch.save`` without ``torch.load``, mapped rather than read.

Both of torch's containers are simple; reading them here means that the pickle inside goes through
`RestrictedUnpickler` alone, and that what else ``torch.load`` accepts (TorchScript, tar files,
source code of modules) never comes to life.
"""

from __future__ import annotations

import io
import mmap
import struct
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from shardgraph.convert.unpickle import (
    RestrictedUnpickler,
    StorageScanner,
    guarded,
    torch_dtype,
    trusted,
)
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# The first pickle of torch's legacy container: its magic number.
_LEGACY_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def load_pt(path: Path, *, trust: bool = False) -> Any:
    """The value of a file of ``torch.save``, with a `Record` for each object of PyG.

    Tensors of the zip container are maps of the file: memory is what is touched. With `trust`
    the file is given to ``torch.load``, which runs whatever code it holds.

    Raises:
        RefusedPickleError: it holds something beyond the classes allowed.
        FormatError: it is damaged, or not a file of ``torch.save``.
    """
    if trust:
        import torch

        return trusted(lambda: torch.load(path, map_location="cpu", weights_only=False), str(path))
    with path.open("rb") as file:
        start = file.read(len(_LEGACY_MAGIC))
        file.seek(0)
        if not start:
            raise FormatError(f"{path} is empty")
        # Private and writable: torch refuses read-only memory, and nothing is ever written back.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return _load(file, content, start, str(path))


def load_pt_bytes(data: bytes, where: str, *, trust: bool = False) -> Any:
    """As `load_pt`, of the contents of such a file."""
    if trust:
        import torch

        stream = io.BytesIO(data)
        return trusted(lambda: torch.load(stream, map_location="cpu", weights_only=False), where)
    return _load(io.BytesIO(data), bytearray(data), data[: len(_LEGACY_MAGIC)], where)


def _load(file: BinaryIO, content: mmap.mmap | bytearray, start: bytes, where: str) -> Any:
    if start.startswith(b"PK\x03\x04"):
        return guarded(lambda: _load_zip(file, content, where), where)
    if start == _LEGACY_MAGIC:
        return guarded(lambda: _load_legacy(file, content, where), where)
    raise FormatError(f"{where} was not written by torch.save, or is damaged at its start")


def loads_torch(data: bytes, where: str) -> Any:
    """The value of a plain pickle that holds tensors, such as a record of a database."""

    def nested(content: bytes) -> Any:
        if not content.startswith(_LEGACY_MAGIC):
            raise FormatError(f"{where}: a tensor's contents are not a file of torch.save")
        return _load_legacy(io.BytesIO(content), bytearray(content), where)

    def no_storage(*_: object) -> NoReturn:
        raise FormatError(f"{where}: a tensor refers to a file that is not there")

    stream = io.BytesIO(data)
    unpickler = RestrictedUnpickler(stream, where, storage=no_storage, nested=nested)
    return guarded(unpickler.load, where)


def _load_zip(file: BinaryIO, content: mmap.mmap | bytearray, where: str) -> Any:
    """The zip container, since torch 1.6: data.pkl, and data/KEY for each storage."""
    with zipfile.ZipFile(file) as archive:
        entries = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise FormatError(f"{where} is a zip file, but not one written by torch.save")
    prefix = pickles[0].removesuffix("data.pkl")

    def span(name: str) -> tuple[int, int]:
        info = entries[prefix + name]
        if info.compress_type != zipfile.ZIP_STORED:
            raise FormatError(f"{where}: {name} is compressed, as torch.save never does")
        magic, *lengths = _LOCAL_HEADER.unpack_from(content, info.header_offset)
        start = info.header_offset + _LOCAL_HEADER.size + sum(lengths)
        if magic != b"PK\x03\x04" or start + info.file_size > len(content):
            raise FormatError(f"{where} is cut off: {name} reaches beyond its end")
        return start, info.file_size

    if prefix + "byteorder" in entries:
        start, size = span("byteorder")
        if content[start : start + size].decode("ascii") != sys.byteorder:
            raise FormatError(f"{where} was written on a machine of the other byte order")
    storages: dict[tuple[str, str], Tensor] = {}

    def storage(dtype: str, key: str, numel: int) -> Tensor:
        if (dtype, key) not in storages:
            start, size = span(f"data/{key}")
            if numel * torch_dtype(dtype).itemsize > size:
                raise FormatError(f"{where}: storage {key} has {size} bytes, not {numel} {dtype}")
            storages[dtype, key] = _view(content, torch_dtype(dtype), start, numel)
        return storages[dtype, key]

    start, size = span("data.pkl")
    stream = io.BytesIO(content[start : start + size])
    return RestrictedUnpickler(stream, where, storage=storage).load()


def _load_legacy(file: BinaryIO, content: mmap.mmap | bytearray, where: str) -> Any:
    """The legacy container, before torch 1.6: five pickles, then each storage with its size.

    The fourth pickle is read twice, as where its storages are is known only from what follows.
    """
    for _ in range(2):
        RestrictedUnpickler(file, where).load()
    system = RestrictedUnpickler(file, where).load()
    if system["little_endian"] != (sys.byteorder == "little"):
        raise FormatError(f"{where} was written on a machine of the other byte order")
    start = file.tell()
    sizes: dict[str, tuple[str, int]] = {}
    StorageScanner(file, where, sizes).load()
    keys = RestrictedUnpickler(file, where).load()
    end, storages = file.tell(), {}
    for key in keys:
        dtype, numel = sizes[key]
        (count,) = struct.unpack_from("<q", content, end)
        stop = end + 8 + numel * torch_dtype(dtype).itemsize
        if count != numel or stop > len(content):
            raise FormatError(f"{where} is cut off in storage {key}")
        storages[key] = _view(content, torch_dtype(dtype), end + 8, numel)
        end = stop
    file.seek(start)
    return RestrictedUnpickler(file, where, storage=lambda _, key, __: storages[key]).load()


def _view(content: mmap.mmap | bytearray, dtype: torch.dtype, start: int, numel: int) -> Tensor:
    import torch

    if numel == 0:
        # Of memory that torch cannot enlarge, as no other storage here can be either.
        return torch.frombuffer(bytearray(dtype.itemsize), dtype=dtype)[:0]
    if start % dtype.itemsize:
        data = bytearray(content[start : start + numel * dtype.itemsize])
        return torch.frombuffer(data, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype, count=numel, offset=start)
