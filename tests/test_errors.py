"""The exception tree."""

import pickle

import pytest

import shardgraph
from shardgraph import errors

BASES = {
    "ShardGraphError": (Exception,),
    "FormatError": (errors.ShardGraphError, ValueError),
    "CorruptShardError": (errors.FormatError,),
    "SchemaError": (errors.ShardGraphError, ValueError),
    "ConversionError": (errors.ShardGraphError, RuntimeError),
}


def test_the_tree_is_whole() -> None:
    found = {
        name: kind.__bases__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert found == BASES


def test_the_docstring_draws_it() -> None:
    depth = {}
    for line in (errors.__doc__ or "").splitlines():
        text = line.strip()
        if text.startswith("* "):
            name = text[2:].split()[0].rstrip(":")
            depth[name] = (len(line) - len(line.lstrip())) // 2
    assert depth == {
        "ShardGraphError": 0,
        "FormatError": 1,
        "CorruptShardError": 2,
        "SchemaError": 1,
        "ConversionError": 1,
    }


@pytest.mark.parametrize("name", BASES)
def test_public_and_picklable(name: str) -> None:
    kind = getattr(shardgraph, name)
    assert kind is getattr(errors, name)
    error = pickle.loads(pickle.dumps(kind("what happened")))
    assert (type(error), str(error)) == (kind, "what happened")
    assert kind.__doc__
