"""The exception tree: every error that shardgraph raises on purpose.

* ShardGraphError
  * FormatError (also a ValueError): the files are not a dataset this version can read
    * CorruptShardError: a shard is damaged, truncated or not the one the manifest names
  * SchemaError (also a ValueError): a graph or an attribute does not fit the dataset's schema
  * ConversionError (also a RuntimeError): a conversion stopped before it could publish

A wrong argument is a plain ``ValueError``, ``TypeError`` or ``IndexError``.
"""


class ShardGraphError(Exception):
    """Base class of all errors raised by shardgraph."""


class FormatError(ShardGraphError, ValueError):
    """The files are not a dataset, or not one that this version can read."""


class CorruptShardError(FormatError):
    """A shard is damaged, truncated, or not the file that the manifest names."""


class SchemaError(ShardGraphError, ValueError):
    """A graph or an attribute does not fit the schema of its dataset."""


class ConversionError(ShardGraphError, RuntimeError):
    """A conversion stopped before it could publish a dataset."""
