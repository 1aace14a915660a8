"""Batches as trees: find and replace the tensors in PyG objects, mappings, lists and tuples.

Whatever is not one of these is a leaf and stays as it is, except objects that move themselves:
those that offer ``to()`` and either ``pin_memory()`` or ``record_stream()``, as the sparse tensors
and frames that PyG accepts do.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

Replace = Callable[[Any], Any]


def replace_leaves(batch: Any, replace: Replace) -> Any:
    """Return ``batch`` with every tensor and every object that moves itself replaced.

    The given batch is never changed, nor any container in it: what has a replaced leaf below it is
    copied, what has none is returned as the same object. Types survive: named tuples, subclasses
    of dict, list and tuple, and PyG's classes.

    Args:
        batch: The tree.
        replace: Called once per leaf that can move, in order; may return the leaf itself.
    """
    if isinstance(batch, Tensor) or moves_itself(batch):
        return replace(batch)
    if is_pyg(batch):
        return _replace_in_pyg(batch, replace)
    if isinstance(batch, PackedSequence):
        return _replace_in_packed_sequence(batch, replace)
    if isinstance(batch, Mapping):
        return _replace_in_mapping(batch, replace)
    if isinstance(batch, (list, tuple)):
        return _replace_in_sequence(batch, replace)
    return batch


def leaves_of(batch: Any) -> list[Any]:
    """Return the leaves that ``replace_leaves`` would replace, in its order."""
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    replace_leaves(batch, note)
    return found


def dense_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the strided tensors that hold the memory of ``tensor``: itself, or its components."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        # A wrapper such as EdgeIndex or a nested tensor. Its attributes say more than
        # __tensor_flatten__, which leaves EdgeIndex's cached transpose out.
        for value in vars(tensor).values():
            for part in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(part, Tensor):
                    yield from dense_parts(part)
    elif tensor.layout == torch.strided:
        yield tensor
    elif tensor.layout == torch.sparse_coo:
        yield tensor._indices()  # unlike indices(), also of an uncoalesced tensor
        yield tensor._values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        raise TypeError(
            f"a tensor of layout {tensor.layout} cannot be prefetched: convert it to a strided or "
            "sparse tensor in the loader"
        )


def num_bytes(leaf: Any) -> int:
    """Return the bytes of a leaf's tensors; 0 for an object that keeps its own to itself."""
    if not isinstance(leaf, Tensor):
        return 0
    return sum(part.numel() * part.element_size() for part in dense_parts(leaf))


def is_pyg(batch: Any) -> bool:
    """Return whether this is a PyG data object: one that applies a function to its tensors."""
    return all(callable(getattr(type(batch), name, None)) for name in ("apply", "record_stream"))


def moves_itself(leaf: Any) -> bool:
    """Return whether this object, no tensor and no PyG data, follows torch's moving methods."""
    kind = type(leaf)
    return (
        callable(getattr(kind, "to", None))
        and any(callable(getattr(kind, name, None)) for name in ("pin_memory", "record_stream"))
        and not isinstance(leaf, (Tensor, PackedSequence))
        and not is_pyg(leaf)
    )


def _replace_in_pyg(batch: Any, replace: Replace) -> Any:
    changed = False
    failed: list[BaseException] = []

    def watch(leaf: Any) -> Any:
        nonlocal changed
        try:
            new = replace_leaves(leaf, replace)
        except BaseException as error:  # apply() hides an error of any leaf that is no tensor
            failed.append(error)
            raise
        changed = changed or new is not leaf
        return new

    # PyG's own to() changes the object in place, and a loader may yield the same one again.
    moved = copy.copy(batch).apply(watch)
    if failed:
        raise failed[0]
    return moved if changed else batch


def _replace_in_packed_sequence(batch: PackedSequence, replace: Replace) -> PackedSequence:
    """Replace all but ``batch_sizes``, which torch wants on the CPU."""
    data = replace(batch.data)
    if data is batch.data:
        return batch
    order, inverse = (
        None if part is None else replace(part)
        for part in (batch.sorted_indices, batch.unsorted_indices)
    )
    return PackedSequence(data, batch.batch_sizes, order, inverse)


def _replace_in_mapping(batch: Mapping[Any, Any], replace: Replace) -> Mapping[Any, Any]:
    new = {key: replace_leaves(value, replace) for key, value in batch.items()}
    if all(value is batch[key] for key, value in new.items()):
        return batch
    if isinstance(batch, MutableMapping):
        clone = copy.copy(batch)  # keeps what a subclass holds besides its items
        clone.update(new)
        return clone
    return type(batch)(new)  # type: ignore[call-arg]  # what immutable mappings accept


def _replace_in_sequence(batch: list[Any] | tuple[Any, ...], replace: Replace) -> Any:
    new = [replace_leaves(value, replace) for value in batch]
    if all(a is b for a, b in zip(batch, new, strict=True)):
        return batch
    if isinstance(batch, list):
        clone = copy.copy(batch)
        clone[:] = new
        return clone
    if hasattr(batch, "_make"):  # a named tuple; _make does not call an overridden __new__
        return batch._make(new)
    return type(batch)(new)
