"""The public names: which they are, that they load lazily, and which of them are modules too."""

import inspect
import pickle
import pydoc
import re
import subprocess
import sys
from importlib import metadata

import pytest

import shardgraph

PUBLIC = [
    "BatchPlan",
    "ConversionError",
    "CorruptShardError",
    "DatasetWriter",
    "DevicePrefetcher",
    "FormatError",
    "GraphLoader",
    "Manifest",
    "Schema",
    "SchemaError",
    "ShardGraphError",
    "ShardedDataset",
    "Source",
    "convert",
    "register_source",
    "repair",
    "verify",
]


def run_python(code: str) -> str:
    """What a fresh interpreter prints for this code."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_exactly_these() -> None:
    assert shardgraph.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_loads_is_listed_and_is_documented(name: str) -> None:
    value = getattr(shardgraph, name)
    assert callable(value)
    assert value.__doc__
    assert name in dir(shardgraph)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'shardgraph' has no attribute 'nothing'"):
        _ = shardgraph.nothing


def test_the_version_is_the_installed_one() -> None:
    try:
        installed = metadata.version("shardgraph")
    except metadata.PackageNotFoundError:
        pytest.skip("shardgraph is on the path, not installed")
    assert shardgraph.__version__ == installed


# Each pair of statements binds the sub-module in the package at another moment.
IMPORT_ORDERS = {
    "name first": "import shardgraph as sg; sg.{name}; import shardgraph.{name}",
    "module first": "import shardgraph.{name}; import shardgraph as sg",
    "from package": "from shardgraph import {name}; import shardgraph as sg",
    "from module": "from shardgraph.{name} import {name}; import shardgraph as sg",
}


@pytest.mark.parametrize("order", IMPORT_ORDERS.values(), ids=IMPORT_ORDERS.keys())
@pytest.mark.parametrize("name", ["convert", "repair", "verify"])
def test_a_function_named_as_its_module_is_called_whatever_was_imported(
    name: str, order: str
) -> None:
    code = f"""
{order.format(name=name)}
import pickle, sys
module = sys.modules["shardgraph.{name}"]
assert sg.{name} is module
assert pickle.loads(pickle.dumps(sg.{name})) is sg.{name}
module.{name} = lambda *args, **options: (args, options)
print(sg.{name}("a", "b", option=3))
"""
    assert run_python(code) == "(('a', 'b'), {'option': 3})"


@pytest.mark.parametrize("name", ["convert", "repair", "verify"])
def test_help_of_a_function_named_as_its_module_is_the_functions(name: str) -> None:
    module = getattr(shardgraph, name)
    function = getattr(module, name)
    assert inspect.signature(module) == inspect.signature(function)
    first, _, rest = inspect.getdoc(function).partition("\n")
    begin, _, then = inspect.getdoc(module).partition(f"\n\nshardgraph.{name}(")
    shown, _, end = then.partition(")\n")
    assert (begin, end) == (first, rest)
    parameters = inspect.signature(function).parameters.values()
    told = re.findall(r"(?:^|[(,])\s*\*{0,2}(\w+)", shown)
    assert told == [parameter.name for parameter in parameters]
    text = pydoc.render_doc(module, renderer=pydoc.plaintext)
    assert text.partition("NAME\n")[2].startswith(
        f"    shardgraph.{name} - {first}\n\nDESCRIPTION\n"
    )


def test_sub_modules_of_convert_import_as_usual() -> None:
    code = """
import shardgraph.convert.registry as registry
import shardgraph as sg
from shardgraph import convert
print(registry is sg.convert.registry, convert is sg.convert, callable(convert))
"""
    assert run_python(code) == "True True True"


def test_public_classes_pickle_by_reference() -> None:
    for name in PUBLIC:
        value = getattr(shardgraph, name)
        assert pickle.loads(pickle.dumps(value)) is value, name
