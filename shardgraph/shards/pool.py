"""The open shards of a dataset in one process, opened when first needed."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import CorruptShardError, FormatError
from shardgraph.format.layout import MANIFEST_NAME
from shardgraph.format.manifest import Manifest, ShardEntry
from shardgraph.format.schema import Schema
from shardgraph.interrupt import interrupt_waits
from shardgraph.shards.compressed import DecodedChunks
from shardgraph.shards.filemap import advise_file
from shardgraph.shards.group import MAX_MAPS, ShardGroup, structure
from shardgraph.shards.open import Shard
from shardgraph.shards.structure import check_size
from shardgraph.shards.tails import Tails

_UNOPENED = np.iinfo(np.int64).min

CHECK_SECONDS = 1.0
"""How often the sizes of open shards are compared with the manifest; about 1 us a shard. It makes a
network file system look, and is all there is where `Tails` cannot tell."""

HEAD_NBYTES, HEAD_NBYTES_OF_GRAPH = 1 << 16, 4 * 8
"""Where a shard's HDF5 headers and ptr end, near enough: those come first in the file. Its last
byte is read on opening, too."""

MAX_HANDLES = 64
"""Open HDF5 handles (compressed shards only) a process keeps; each costs about 0.7 MB."""


logger = logging.getLogger(__name__)


Handles: TypeAlias = "OrderedDict[int, weakref.ref[Shard]]"
"""Shards whose HDF5 handle may be open, that used last at the end."""


def _keep_handle(handles: Handles, number: int, shard: weakref.ref[Shard]) -> None:
    """Takes note that a handle is about to be used, and closes those used longest ago."""
    handles[number] = shard
    handles.move_to_end(number)
    while len(handles) > MAX_HANDLES:
        oldest = handles.popitem(last=False)[1]()
        if oldest is not None:
            oldest.close()


class ShardPool:
    """Opens shards on first use, each process its own; pickles and forks as if nothing were open.

    Several threads may read; ``close`` must not run beside them.
    """

    def __init__(self, root: Path, manifest: Manifest, schema: Schema) -> None:
        self.root = root
        self.entries = manifest.shards
        self.schema = schema
        self.starts: NDArray[np.int64] = np.zeros(len(self.entries) + 1, np.int64)
        np.cumsum([entry.num_graphs for entry in self.entries], out=self.starts[1:])
        self._reset()

    _of_process = (
        *("_pid", "_next_check", "_opening", "_shards", "_handles", "_decoded"),
        *("groups", "_group_numbers", "_owners", "_tails"),
    )
    """Attributes of one process, which are neither pickled nor used after a fork."""

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._next_check = 0.0
        self._opening = threading.Lock()
        self._shards: dict[int, Shard] = {}
        self.groups: list[ShardGroup] = []
        self._group_numbers: dict[Hashable, int] = {}
        self._owners: NDArray[np.int64] = np.full(len(self.entries), _UNOPENED, np.int64)
        self._handles: Handles = OrderedDict()
        self._decoded = DecodedChunks()
        self._tails = Tails(len(self.entries))

    @property
    def num_graphs(self) -> int:
        """Number of graphs of all shards."""
        return int(self.starts[-1])

    @property
    def num_open(self) -> int:
        """How many shards this process has open."""
        return len(self._shards) if self._pid == os.getpid() else 0

    def shard(self, number: int) -> Shard:
        """The open shard of that number.

        Raises:
            CorruptShardError: if the file is not the shard it should be.
            FormatError: if the dataset was replaced by another, or the file holds what it must not.
        """
        if self._pid != os.getpid():
            self._reset()
        shard = self._shards.get(number)
        if shard is None:
            with self._opening, interrupt_waits():
                shard = self._shards.get(number)
                if shard is None:
                    shard = self._open(self.entries[number])
                    self._owners[number] = self._owner(number, shard)
                    self._tails.add(number, shard.map)
                    if shard.index_chunked:
                        keep = partial(_keep_handle, self._handles, number, weakref.ref(shard))
                        shard.before_use = keep
                        shard.decoded = self._decoded
                    self._shards[number] = shard
        return shard

    def _open(self, entry: ShardEntry) -> Shard:
        try:
            shard = Shard(self.root / entry.name, entry, self.schema)
        except (CorruptShardError, FileNotFoundError) as error:
            if not (self.root / MANIFEST_NAME).exists():
                raise FormatError(
                    f"{self.root} holds no dataset any more: it was moved or deleted after it was "
                    "opened; open it where it is now"
                ) from error
            if Manifest.read(self.root).shards != self.entries:
                raise FormatError(
                    f"{self.root} holds another dataset than when it was opened; open it again"
                ) from error
            raise
        shard.map.advise_random()
        return shard

    def owners(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Who reads shards: the number of a group; or -1 - the shard's number, if it is alone."""
        if self._pid != os.getpid():
            self._reset()
        owners = self._owners[numbers]
        if (missing := owners == _UNOPENED).any():
            self.open(np.unique(numbers[missing]))
            owners = self._owners[numbers]
        return owners

    def open(self, numbers: NDArray[np.int64]) -> None:
        """Opens some shards: the disk gets to know of all before the first is waited for."""
        missing = [number for number in numbers.tolist() if number not in self._shards]
        for number in missing if len(missing) > 1 else ():
            entry = self.entries[number]
            head = HEAD_NBYTES + HEAD_NBYTES_OF_GRAPH * entry.num_graphs
            spans = (0, head), (max(entry.nbytes - 1, 0), 1)
            with contextlib.suppress(OSError):  # opening it says what is wrong
                advise_file(self.root / entry.name, spans, "POSIX_FADV_WILLNEED")
        for number in missing:
            self.shard(number)

    def forget(self) -> None:
        """Lets this process's page tables go, so that the kernel can drop pages; see `let_go`."""
        for group in self.groups:
            group.forget()
        for number, shard in list(self._shards.items()):
            if self._owners[number] < 0:  # alone
                shard.map.forget()

    def _owner(self, number: int, shard: Shard) -> int:
        """The group that a shard was added to; or -1 - its number, if it stays alone."""
        alone = -1 - number
        key = structure(shard) if len(self.entries) > 1 and os.name == "posix" else None
        maps = sum(group.num_maps for group in self.groups) * len(self._shards)
        if key is None or maps > MAX_MAPS:
            return alone
        try:
            place = self._group_numbers.get(key)
            if place is None:
                self.groups.append(ShardGroup(shard, self.entries))
                place = self._group_numbers[key] = len(self.groups) - 1
            self.groups[place].add(number, shard)
        except OSError as error:  # no addresses or maps left: read shard by shard
            logger.debug("%s is read by itself: %s", shard.path, error)
            return alone
        return place

    def locate(self, graph: int) -> tuple[Shard, int]:
        """The shard that holds a graph, and the graph's number in it.

        Raises:
            IndexError: if there is no such graph.
        """
        if not 0 <= graph < self.num_graphs:
            raise IndexError(f"graph {graph} of a dataset of {self.num_graphs} graphs")
        number = int(np.searchsorted(self.starts, graph, side="right")) - 1
        shard = self.shard(number)
        self._check_sizes()
        if self._tails.has_changed(number):
            raise self._changed(number)
        return shard, graph - int(self.starts[number])

    def check(self, numbers: NDArray[np.int64]) -> None:
        """Checks that open shards, which are about to be read, have not shrunk since.

        A shard that shrinks in the instant between this and the reading still ends the process.

        Raises:
            CorruptShardError: naming the shard that has. One that was removed can still be read.
        """
        self._check_sizes()
        changed = self._tails.first_changed(numbers)
        if changed is not None:
            raise self._changed(changed)

    def _changed(self, number: int) -> CorruptShardError:
        path = self.root / self.entries[number].name
        try:
            check_size(path, self.entries[number])
        except CorruptShardError as error:
            return error
        return CorruptShardError(
            f"the end of {path} is not what it was when this process opened it, or cannot be read; "
            "shards never change: restore it, or convert the dataset again, and open it again"
        )

    def _check_sizes(self) -> None:
        """Compares the sizes of all open shards with the manifest, now and then."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        for number in list(self._shards):
            entry = self.entries[number]
            try:
                check_size(self.root / entry.name, entry)
            except CorruptShardError as error:
                if not isinstance(error.__cause__, FileNotFoundError):  # removed: the map stays
                    raise

    def check_all(self) -> None:
        """Compares the sizes of all shards, open or not, with the manifest.

        Raises:
            CorruptShardError: naming the first that is missing, or longer or shorter.
        """
        for entry in self.entries:
            check_size(self.root / entry.name, entry)

    def close(self) -> None:
        """Forgets all open shards; reading again opens them again."""
        for shard in self._shards.values() if self._pid == os.getpid() else ():
            shard.close()
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in self._of_process:
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
