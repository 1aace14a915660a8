"""The on-disk format: names, schema, manifest, statistics. ``SPEC.md`` beside this is the law."""

from shardgraph.format.manifest import Manifest, ShardEntry
from shardgraph.format.schema import Schema

__all__ = ["Manifest", "Schema", "ShardEntry"]
