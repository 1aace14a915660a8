"""Reads pickles without letting them run code.

A pickle names classes and functions to call. Here each name is looked up in a closed list and
stands for something harmless: a few builtins, NumPy's and torch's ways to rebuild an array, and
for PyG's and SciPy's classes an inert record that only keeps its state, from which the graph is
built afterwards. Nothing is imported by a name found in a file.

The records are made anew for each file, so that no pickle can change a class for the next one.
"""

from __future__ import annotations

import collections
import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import numpy as np

from shardgraph.errors import FormatError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "complex64", "complex128", "int64", "int32",
    "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
_RECORDS = {
    "torch_geometric.data.data": ("Data", "DataEdgeAttr", "DataTensorAttr"),
    "torch_geometric.data.hetero_data": ("HeteroData",),
    "torch_geometric.data.storage": ("BaseStorage", "NodeStorage", "EdgeStorage", "GlobalStorage"),
    "torch_geometric.data.feature_store": ("TensorAttr",),
    "torch_geometric.data.graph_store": ("EdgeAttr",),
    "torch_geometric.edge_index": ("EdgeIndex",),
    "torch_geometric.index": ("Index",),
    "scipy.sparse.csr": ("csr_matrix",),
    "scipy.sparse._csr": ("csr_matrix", "csr_array"),
}
# What a damaged or hostile pickle makes the unpickler raise.
_PICKLE_ERRORS = (
    pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, LookupError, MemoryError,
    RecursionError, RuntimeError, TypeError, ValueError, struct.error, zipfile.BadZipFile,
)  # fmt: skip


class RefusedPickleError(FormatError):
    """A pickle names a class or function that is not on the list of harmless ones."""


class Record:
    """An object of a pickle, as its class name and its state."""

    __slots__ = ("state",)
    kind = "object"

    state: Any

    def __new__(cls, *_: object) -> Record:
        """An empty record; what a class would be called with is not kept."""
        self = super().__new__(cls)
        self.state = {}
        return self

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Fixed:
    """An object that a pickle cannot change: to set an attribute of it is an error."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise pickle.UnpicklingError("an attribute is set of what only stands for a name")


class _Stand(_Fixed):
    """What an allowed name stands for: something to call."""

    __slots__ = ("_call",)
    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


class _StorageType(_Fixed):
    """A storage class of torch, by the name of its element type."""

    __slots__ = ("dtype",)
    dtype: str

    def __init__(self, dtype: str) -> None:
        object.__setattr__(self, "dtype", dtype)


class RestrictedUnpickler(pickle.Unpickler):
    """Unpickles plain values, NumPy arrays, tensors and `Record` objects; refuses all else.

    Args:
        file: The pickle.
        where: Name of the file, for errors.
        encoding: Of the byte strings of Python 2, as in ``pickle.load``.
        storage: Returns the storage of a persistent id of torch; without it there are none.
        nested: Returns the storage in the bytes that a plain pickle of a tensor holds.
    """

    def __init__(
        self,
        file: BinaryIO,
        where: str,
        *,
        encoding: str = "ASCII",
        storage: Callable[[str, str, int], Tensor] | None = None,
        nested: Callable[[bytes], Any] | None = None,
    ) -> None:
        super().__init__(file, encoding=encoding)
        self._where = where
        self._storage = storage
        self._allowed = _allowed_names() | (_torch_names() if storage else {})
        if nested is not None:
            self._allowed["torch.storage", "_load_from_bytes"] = _Stand(nested)

    def find_class(self, module: str, name: str) -> Any:
        """What the name stands for in the closed list."""
        found = self._allowed.get((module, name))
        if found is None:
            raise RefusedPickleError(
                f"{self._where} holds {module}.{name}, which is not one of the PyG, torch, NumPy "
                "and builtin classes that are read. Loading it could run any code. If you trust "
                "where the file comes from, pass trust_pickle=True (--trust-pickle)"
            )
        return found

    def persistent_load(self, pid: Any) -> Any:
        """A storage of torch, by ("storage", type, key, location, number of elements)."""
        if self._storage is None or not isinstance(pid, tuple) or len(pid) not in (5, 6):
            raise pickle.UnpicklingError("unexpected persistent id")
        _, storage_type, key, _, numel, *view = pid
        if not isinstance(storage_type, _StorageType) or int(numel) < 0:
            raise pickle.UnpicklingError("unexpected storage type")
        storage = self._storage(storage_type.dtype, str(key), int(numel))
        if view and view[0] is not None and not isinstance(storage, Record):
            _, start, size = view[0]
            storage = storage[int(start) : int(start) + int(size)]
        return storage


class StorageScanner(RestrictedUnpickler):
    """Unpickles only to learn type and size of each storage: tensors become records."""

    def __init__(self, file: BinaryIO, where: str, found: dict[str, tuple[str, int]]) -> None:
        super().__init__(file, where, storage=self._note)
        self._found = found

    def find_class(self, module: str, name: str) -> Any:
        """A record for all that would need the contents of a storage."""
        found = super().find_class(module, name)
        return type("Scanned", (Record,), {"__slots__": ()}) if isinstance(found, _Stand) else found

    def _note(self, dtype: str, key: str, numel: int) -> Any:
        self._found.setdefault(key, (dtype, numel))
        return Record()


def loads(data: bytes, where: str, *, encoding: str = "ASCII") -> Any:
    """The value of a pickle without tensors; see `RestrictedUnpickler`."""
    unpickler = RestrictedUnpickler(io.BytesIO(data), where, encoding=encoding)
    return guarded(unpickler.load, where)


def trusted(load: Callable[[], Any], where: str) -> Any:
    """What `load` returns, of code that the user trusts; FormatError for all that it raises."""
    try:
        return load()
    except Exception as error:
        advice = ""
        if isinstance(error, ModuleNotFoundError):
            advice = (
                ". Let Python find the module: run `python -m shardgraph` in the folder that holds "
                f"{error.name}, or put that folder on the path (PYTHONPATH=FOLDER)"
            )
        raise FormatError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}{advice}"
        ) from error


def guarded(load: Callable[[], Any], where: str) -> Any:
    """What `load` returns; a FormatError that names the file for whatever damage makes it raise."""
    try:
        return load()
    except FormatError:
        raise
    except _PICKLE_ERRORS as error:
        raise FormatError(f"{where} is damaged: {type(error).__name__}: {error}") from error


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of torch of that name."""
    import torch

    found: torch.dtype = getattr(torch, name)
    return found


def _allowed_names() -> dict[tuple[str, str], Any]:
    """Everything a pickle may name, and what stands for it; made anew for each pickle."""
    allowed: dict[tuple[str, str], Any] = {
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("collections", "defaultdict"): collections.defaultdict,
        ("_codecs", "encode"): _Stand(_encode),
        ("copy_reg", "_reconstructor"): _Stand(_reconstruct_object),
        ("numpy", "dtype"): _Stand(_dtype),
        ("numpy", "ndarray"): _Stand(_refuse_call),
    }
    allowed["copyreg", "_reconstructor"] = allowed["copy_reg", "_reconstructor"]
    for builtins in ("builtins", "__builtin__"):
        for kind in (int, float, complex, bool, str, list, tuple, dict, set, frozenset, slice,
                     object):  # fmt: skip
            allowed[builtins, kind.__name__] = kind
        allowed[builtins, "bytes"] = _Stand(_bytes)
        allowed[builtins, "bytearray"] = _Stand(_bytearray)
    for core in ("numpy.core", "numpy._core"):
        allowed[f"{core}.multiarray", "_reconstruct"] = _Stand(_empty_array)
        allowed[f"{core}.multiarray", "scalar"] = _Stand(_scalar)
        allowed[f"{core}.numeric", "_frombuffer"] = _Stand(_array_of_bytes)
    for module, names in _RECORDS.items():
        for name in names:
            allowed[module, name] = type(name, (Record,), {"__slots__": (), "kind": name})
    return allowed


def _torch_names() -> dict[tuple[str, str], Any]:
    import torch

    allowed: dict[tuple[str, str], Any] = {
        ("torch", "Size"): _Stand(torch.Size),
        ("torch", "device"): _Stand(torch.device),
        ("torch", "Tensor"): _Stand(_refuse_call),
        ("torch.nn.parameter", "Parameter"): _Stand(_refuse_call),
        ("torch._utils", "_rebuild_tensor"): _Stand(_tensor),
        ("torch._utils", "_rebuild_tensor_v2"): _Stand(_tensor),
        ("torch._utils", "_rebuild_tensor_v3"): _Stand(_tensor_v3),
        ("torch._utils", "_rebuild_parameter"): _Stand(_first),
        ("torch._utils", "_rebuild_sparse_tensor"): _Stand(_sparse_tensor),
        ("torch._utils", "_rebuild_wrapper_subclass"): _Stand(_wrapper_subclass),
        ("torch._tensor", "_rebuild_from_type_v2"): _Stand(_from_type),
        ("torch.serialization", "_get_layout"): _Stand(str),
        ("torch_geometric.edge_index", "SortOrder"): _Stand(str),
    }
    for name in filter(lambda name: hasattr(torch, name), _DTYPES):
        allowed["torch", name] = getattr(torch, name)
    for name, dtype in _STORAGES.items():
        for module in ("torch", "torch.cuda"):
            allowed[module, name] = _StorageType(dtype)
    for name in ("TypedStorage", "UntypedStorage"):
        allowed["torch.storage", name] = _StorageType("uint8")
    return allowed


def _refuse_call(*_: object) -> NoReturn:
    raise pickle.UnpicklingError("a class is called that is only ever named")


def _first(value: object, *_: object) -> object:
    return value


def _bytes(*args: Any) -> bytes:
    """Of another value, never of a size: that would allocate what the file does not hold."""
    if args and isinstance(args[0], int):
        raise pickle.UnpicklingError("bytes of a size without contents")
    return bytes(*args)


def _bytearray(*args: Any) -> bytearray:
    return bytearray(_bytes(*args))


def _dtype(name: str, align: bool = False, *_: object) -> np.dtype[Any]:
    """A dtype object of its own, so that no state from the file reaches a shared one."""
    if not isinstance(name, str):
        raise pickle.UnpicklingError("a dtype that is not named by a string")
    return np.dtype(name, align=bool(align), copy=True)


def _encode(text: str, encoding: str) -> bytes:
    """Byte strings of a protocol-2 pickle; other codecs are not pickle's."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"unexpected codec {encoding!r}")
    return text.encode("latin1")


def _reconstruct_object(cls: type, base: type, *_: object) -> object:
    if not (isinstance(cls, type) and issubclass(cls, Record) and base is object):
        raise pickle.UnpicklingError("a class is rebuilt that is not a record")
    return cls()


def _empty_array(*_: object) -> np.ndarray[Any, Any]:
    """An array for its own ``__setstate__`` to fill, which checks sizes and takes no code."""
    return np.empty(0, dtype=np.int8)


def _scalar(dtype: np.dtype[Any], data: bytes) -> Any:
    if dtype.hasobject or len(data) != dtype.itemsize:
        raise pickle.UnpicklingError("a scalar of Python objects, or of another size")
    return np.frombuffer(data, dtype=dtype)[0]


def _array_of_bytes(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: str) -> Any:
    if dtype.hasobject:
        raise pickle.UnpicklingError("an array of Python objects from bytes")
    return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if order == "F" else "C")


def _tensor(
    storage: Tensor,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    _requires_grad: bool = False,
    _hooks: object = None,
    metadata: dict[str, bool] | None = None,
) -> Tensor:
    """A view of a storage; torch checks that it stays inside. Gradients and hooks are dropped."""
    import torch

    if not isinstance(storage, torch.Tensor):
        raise pickle.UnpicklingError("a tensor without a storage")
    tensor = torch.as_strided(storage, size, stride, offset + storage.storage_offset())
    if metadata and metadata.get("conj"):
        tensor = tensor.conj_physical()
    return tensor.neg() if metadata and metadata.get("neg") else tensor


def _tensor_v3(
    storage: Tensor,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    hooks: object,
    dtype: torch.dtype,
    metadata: dict[str, bool] | None = None,
) -> Tensor:
    return _tensor(storage.view(dtype), offset, size, stride, requires_grad, hooks, metadata)


def _sparse_tensor(layout: str, data: tuple[Any, ...]) -> Tensor:
    import torch

    if layout == "torch.sparse_coo":
        indices, values, size, *coalesced = data
        return torch.sparse_coo_tensor(
            indices,
            values,
            size,
            check_invariants=True,
            is_coalesced=bool(coalesced[0]) if coalesced and coalesced[0] is not None else None,
        )
    layouts = {f"torch.sparse_{name}": getattr(torch, f"sparse_{name}") for name in
               ("csr", "csc", "bsr", "bsc")}  # fmt: skip
    compressed, plain, values, size = data
    return torch.sparse_compressed_tensor(
        compressed, plain, values, size, layout=layouts[layout], check_invariants=True
    )


def _wrapper_subclass(cls: object, *_: object) -> object:
    return cls


def _from_type(rebuild: object, cls: object, args: tuple[Any, ...], state: object) -> object:
    """A tensor with attributes: they are kept for the subclasses of PyG, which need them."""
    if not isinstance(rebuild, _Stand):
        raise pickle.UnpicklingError("a tensor rebuilt by something that rebuilds no tensors")
    if isinstance(cls, type) and issubclass(cls, Record):
        record = cls()
        record.state = state
        return record
    return rebuild(*args)
