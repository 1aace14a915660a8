"""Shards that must be refused: what is done to one, the error that is due, and what it says."""

import h5py
import numpy as np
from forging import (
    Change,
    array,
    attribute,
    bomb,
    chunked,
    compact,
    dataset_for_group,
    delete,
    external_group,
    external_link,
    foreign_filter,
    group,
    gzip_of,
    half_written,
    linked_group,
    lz4_of,
    null,
    put,
    replaced,
    rewrite_chunk,
    scalar,
    soft_link,
    unallocated,
    virtual,
)

import shardgraph as sg

ROW = ("ptr/node", [0, 3, 4, 8])
VLEN = h5py.vlen_dtype(np.float32)
RECORD = np.zeros(8, [("a", "f4"), ("b", "f4")])
OBJECTS = np.array([b"text"] * 8, object)

CASES: dict[str, tuple[Change, type[Exception], str]] = {
    "external link": (
        replaced("columns/x", external_link),
        sg.FormatError,
        "/columns/x is a soft or external link, which is refused",
    ),
    "soft link": (
        replaced("columns/x", soft_link),
        sg.FormatError,
        "/columns/x is a soft or external link, which is refused",
    ),
    "linked group": (linked_group, sg.FormatError, "/columns is a soft or external link"),
    "external group": (external_group, sg.FormatError, "/columns is a soft or external link"),
    "external storage": (
        replaced(
            "columns/x",
            lambda file: file.create_dataset(
                "columns/x", (8, 2), "f4", external=[("x.raw", 0, 64)]
            ),
        ),
        sg.FormatError,
        "/columns/x has a storage layout that is refused",
    ),
    "virtual": (
        replaced("columns/x", virtual),
        sg.FormatError,
        "/columns/x has a storage layout that is refused",
    ),
    "compact": (
        replaced("columns/x", compact),
        sg.FormatError,
        "/columns/x has a storage layout that is refused",
    ),
    "huge, unallocated": (
        replaced("columns/x", unallocated),
        sg.CorruptShardError,
        "/columns/x has no storage for its 9007199254740992 bytes",
    ),
    "scalar": (replaced("columns/x", scalar), sg.FormatError, "/columns/x is not an array"),
    "null": (replaced("columns/x", null), sg.FormatError, "/columns/x is not an array"),
    "bomb": (
        replaced("columns/x", chunked((1 << 40, 2), (1 << 20, 2), compression="gzip")),
        sg.FormatError,
        "/columns/x claims 8796093022208 bytes, more than its chunks can hold",
    ),
    "huge chunks": (
        replaced("columns/x", chunked((1 << 25, 2), (1 << 25, 2), compression="gzip")),
        sg.FormatError,
        "/columns/x has chunks of 268435456 bytes; 67108864 is the most",
    ),
    "chunks missing": (
        replaced("columns/x", half_written),
        sg.CorruptShardError,
        "/columns/x lacks some of its chunks",
    ),
    "foreign filter": (
        replaced("columns/x", foreign_filter),
        sg.FormatError,
        "/columns/x needs HDF5 filter 32000, which is refused",
    ),
    "vlen": (
        replaced("columns/x", lambda file: file.create_dataset("columns/x", (8,), VLEN)),
        sg.FormatError,
        "/columns/x does not hold plain numbers",
    ),
    "vlen text": (
        replaced("columns/x", array("columns/x", OBJECTS, dtype=h5py.string_dtype())),
        sg.FormatError,
        "/columns/x does not hold plain numbers",
    ),
    "references": (
        replaced("columns/x", lambda file: file.create_dataset("columns/x", (8,), h5py.ref_dtype)),
        sg.FormatError,
        "/columns/x does not hold plain numbers",
    ),
    "compound": (
        replaced("columns/x", array("columns/x", RECORD)),
        sg.FormatError,
        "/columns/x does not hold plain numbers",
    ),
    "enum": (
        replaced("columns/x", array("columns/x", np.zeros((8, 2), bool))),
        sg.FormatError,
        "/columns/x does not hold plain numbers",
    ),
    "big-endian": (
        replaced("columns/x", array("columns/x", np.zeros((8, 2), ">f4"))),
        sg.FormatError,
        "/columns/x is big-endian; shards are little-endian",
    ),
    "wide dtype": (
        replaced("columns/x", array("columns/x", np.zeros((8, 2), "f8"))),
        sg.FormatError,
        "/columns/x has dtype float64, the schema says float32",
    ),
    "integers for floats": (
        replaced("columns/x", array("columns/x", np.zeros((8, 2), "i4"))),
        sg.FormatError,
        "/columns/x has dtype int32, the schema says float32",
    ),
    "floats for integers": (
        replaced("columns/edge_index", array("columns/edge_index", np.zeros((16, 2), "f4"))),
        sg.FormatError,
        "/columns/edge_index has dtype float32, the schema says int64",
    ),
    "wrong row shape": (
        replaced("columns/x", array("columns/x", np.zeros((8, 3), "f4"))),
        sg.FormatError,
        "/columns/x has shape [8, 3], must have [*, 2]",
    ),
    "too few rows": (
        replaced("columns/x", array("columns/x", np.zeros((7, 2), "f4"))),
        sg.CorruptShardError,
        "/ptr/node ends at row 8 of column 'x', which has 7 rows",
    ),
    "too few graphs": (
        replaced("columns/y", array("columns/y", np.zeros(2))),
        sg.CorruptShardError,
        "/columns/y has 2 rows for 3 graphs",
    ),
    "group for dataset": (
        replaced("columns/x", group),
        sg.FormatError,
        "/columns/x is not a dataset",
    ),
    "dataset for group": (dataset_for_group, sg.FormatError, "/columns is not a group"),
    "missing column": (delete("columns/x"), sg.CorruptShardError, "/columns/x is missing"),
    "missing columns": (delete("columns"), sg.CorruptShardError, "is missing"),
    "missing ptr": (delete("ptr/node"), sg.CorruptShardError, "/ptr/node is missing"),
    "missing shapes": (delete("shapes/v"), sg.CorruptShardError, "/shapes/v is missing"),
    "missing format": (
        attribute("/", "format", None),
        sg.CorruptShardError,
        "attribute 'format' is missing",
    ),
    "missing axis": (
        attribute("columns/x", "axis", None),
        sg.CorruptShardError,
        "attribute 'axis' is missing",
    ),
    "other format": (
        attribute("/", "format", np.bytes_("other")),
        sg.FormatError,
        "attribute 'format' is not 'shardgraph'",
    ),
    "vlen attribute": (
        attribute("columns/x", "inc", "none"),
        sg.FormatError,
        "attribute 'inc' is not a short text",
    ),
    "number for text": (
        attribute("columns/x", "inc", 1),
        sg.FormatError,
        "attribute 'inc' is not a short text",
    ),
    "texts for text": (
        attribute("columns/x", "inc", np.array([b"none", b"none"])),
        sg.FormatError,
        "attribute 'inc' is not a short text",
    ),
    "overlong attribute": (
        attribute("columns/x", "inc", np.bytes_(b"n" * 5000)),
        sg.FormatError,
        "attribute 'inc' is not a short text",
    ),
    "not UTF-8": (
        attribute("columns/x", "axis", np.bytes_(b"\xff\xfe")),
        sg.CorruptShardError,
        "cannot be read as a shard: 'utf-8' codec",
    ),
    "unknown rule": (
        attribute("columns/x", "inc", np.bytes_("twice")),
        sg.FormatError,
        "/columns/x has increment rule 'twice'",
    ),
    "endpoints without types": (
        attribute("columns/x", "inc", np.bytes_("endpoints")),
        sg.FormatError,
        "/columns/x has increment rule 'endpoints'",
    ),
    "increments missing": (
        attribute("columns/x", "inc", np.bytes_("explicit")),
        sg.CorruptShardError,
        "/inc/x is missing",
    ),
    "unknown axis": (
        attribute("columns/x", "axis", np.bytes_("../../secret")),
        sg.CorruptShardError,
        "/ptr/../../secret is missing",
    ),
    "number of another axis": (
        attribute("columns/y", "axis", np.bytes_("node")),
        sg.FormatError,
        "/columns/y counts axis 'node', must be 'graph'",
    ),
    "number of graphs": (
        attribute("/", "num_graphs", 4),
        sg.CorruptShardError,
        "has 4 graphs, the manifest says 3",
    ),
    "graphs as text": (
        attribute("/", "num_graphs", np.bytes_("3")),
        sg.FormatError,
        "attribute 'num_graphs' is not an integer",
    ),
    "major version": (
        attribute("/", "version", np.bytes_("2.0")),
        sg.FormatError,
        "format version 2.0 is not known to this release",
    ),
    "short ptr": (
        replaced("ptr/node", array("ptr/node", np.array([0, 3, 8]))),
        sg.FormatError,
        "/ptr/node must be contiguous int64 [4], is int64 [3]",
    ),
    "narrow ptr": (
        replaced("ptr/node", array("ptr/node", np.array(ROW[1], np.int32))),
        sg.FormatError,
        "/ptr/node must be contiguous int64 [4], is int32 [4]",
    ),
    "chunked ptr": (
        replaced("ptr/node", array("ptr/node", np.array(ROW[1]), chunks=(4,))),
        sg.FormatError,
        "/ptr/node must be contiguous int64 [4]",
    ),
    "ptr starts late": (put("ptr/node", 0, 1), sg.CorruptShardError, "/ptr/node does not rise"),
    "ptr falls": (put("ptr/node", 2, 2), sg.CorruptShardError, "/ptr/node "),
    "ptr is negative": (put("ptr/node", 1, -3), sg.CorruptShardError, "/ptr/node "),
    "ptr is huge": (put("ptr/node", 1, 1 << 60), sg.CorruptShardError, "/ptr/node "),
    "ptr ends late": (
        put("ptr/node", 3, 1 << 60),
        sg.CorruptShardError,
        "/ptr/node ends at row 1152921504606846976 of column 'x', which has 8 rows",
    ),
    "shape lies": (put("shapes/v", (0, 0), 4), sg.CorruptShardError, "/shapes/v does not fit"),
    "shape is negative": (
        put("shapes/v", slice(0, 1), -3),
        sg.CorruptShardError,
        "/shapes/v does not fit",
    ),
    "shape wraps around": (
        put("shapes/v", slice(0, 1), 1 << 32),
        sg.CorruptShardError,
        "/shapes/v does not fit",
    ),
}


def committed(file: h5py.File) -> h5py.Dataset:
    file["kind"] = np.dtype("f4")
    return file.create_dataset("columns/x", (8, 2), file["kind"])


def odd_bits(file: h5py.File) -> h5py.Dataset:
    """Integers of 5 bits in 8, which HDF5 would convert and a map would not."""
    kind = h5py.h5t.STD_U8LE.copy()
    kind.set_precision(5)
    space, plist = h5py.h5s.create_simple((16, 2)), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    return h5py.Dataset(h5py.h5d.create(file.id, b"columns/edge_index", kind, space, plist))


def filtered(*filters: int) -> Change:
    """A column that goes through HDF5 filters in that order."""

    def make(file: h5py.File) -> h5py.Dataset:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((8, 2))
        for number in filters:
            plist.set_filter(number, h5py.h5z.FLAG_OPTIONAL, (6,) if number == 1 else ())
        space = h5py.h5s.create_simple((8, 2))
        made = h5py.h5d.create(file.id, b"columns/x", h5py.h5t.IEEE_F32LE, space, plist)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ones((8, 2), np.float32))
        return h5py.Dataset(made)

    return replaced("columns/x", make)


def zstd_of(size: int) -> Change:
    """A Zstd frame header that says it decodes to so many bytes, and no frame."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little")
    return rewrite_chunk(lambda *_: frame + bytes(8))


CASES |= {
    "committed type": (
        replaced("columns/x", committed),
        sg.FormatError,
        "/columns/x has a committed type, which is refused",
    ),
    "odd bits": (
        replaced("columns/edge_index", odd_bits),
        sg.FormatError,
        "/columns/edge_index holds numbers of other bits than uint8 has",
    ),
    "external ptr": (
        replaced("ptr/node", lambda f: f.__setitem__("ptr/node", h5py.ExternalLink("o.h5", "/x"))),
        sg.FormatError,
        "/ptr/node is a soft or external link, which is refused",
    ),
    "external storage of ptr": (
        replaced(
            "ptr/node",
            lambda f: f.create_dataset("ptr/node", (4,), "i8", external=[("x.raw", 0, 32)]),
        ),
        sg.FormatError,
        "/ptr/node has a storage layout that is refused",
    ),
    "soft link to itself": (
        replaced("columns/x", lambda f: f.__setitem__("columns/x", h5py.SoftLink("/columns/x"))),
        sg.FormatError,
        "/columns/x is a soft or external link, which is refused",
    ),
    "negative number of graphs": (
        attribute("/", "num_graphs", -3),
        sg.CorruptShardError,
        "has -3 graphs, the manifest says 3",
    ),
    "huge number of graphs": (
        attribute("/", "num_graphs", np.uint64(1 << 63)),
        sg.CorruptShardError,
        "has 9223372036854775808 graphs, the manifest says 3",
    ),
    "deflated twice": (
        filtered(1, 1),
        sg.FormatError,
        "/columns/x uses HDF5 filters (1, 1) in an order that is refused",
    ),
    "deflated before it is shuffled": (
        filtered(1, 2),
        sg.FormatError,
        "/columns/x uses HDF5 filters (1, 2) in an order that is refused",
    ),
}

SHORT = "does not decode to its 64 bytes"
# By compression: what is done to the chunk that holds all of x, and what is said of it.
CHUNKS: dict[str, tuple[str, Change, str]] = {
    # HDF5 itself hands out what lies behind these in memory, or crashes.
    "decodes to less": ("gzip", rewrite_chunk(gzip_of(lambda n: n - 1)), SHORT),
    "decodes to nothing": ("gzip", rewrite_chunk(gzip_of(lambda _: 0)), SHORT),
    "decodes to more": ("gzip", rewrite_chunk(gzip_of(lambda n: n + 1)), SHORT),
    "bomb": ("gzip", rewrite_chunk(bomb), SHORT),
    "cut off": ("gzip", rewrite_chunk(lambda raw, _: raw[:-6]), SHORT),
    "no stream": ("gzip", rewrite_chunk(lambda raw, _: b"\xff" * len(raw)), SHORT),
    "empty": ("gzip", rewrite_chunk(lambda *_: b"\0"), SHORT),
    "not compressed, short": (
        "gzip",
        rewrite_chunk(lambda _, n: bytes(n - 1), mask=3),
        "is not of its 64 bytes",
    ),
    "not compressed, long": (
        "gzip",
        rewrite_chunk(lambda _, n: bytes(n + 1), mask=3),
        "is not of its 64 bytes",
    ),
    "lz4 of more": ("lz4", rewrite_chunk(lz4_of(1 << 40, 64, 64)), SHORT),
    "lz4 of blocks of nothing": ("lz4", rewrite_chunk(lz4_of(64, 0, 64)), SHORT),
    "lz4 of a block beyond the end": ("lz4", rewrite_chunk(lz4_of(64, 64, 1 << 30)), SHORT),
    "lz4 cut off": ("lz4", rewrite_chunk(lambda raw, _: raw[:11]), SHORT),
    "zstd of more": ("zstd", zstd_of(1 << 40), SHORT),
    "zstd of less": ("zstd", zstd_of(63), SHORT),
    "zstd of unknown size": ("zstd", rewrite_chunk(lambda *_: b"\x28\xb5\x2f\xfd\0\0\0\0"), SHORT),
    "zstd cut off": ("zstd", rewrite_chunk(lambda raw, _: raw[:5]), SHORT),
    "no zstd": ("zstd", rewrite_chunk(lambda raw, _: bytes(len(raw))), SHORT),
}
