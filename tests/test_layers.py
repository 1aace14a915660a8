"""Who may import whom: imports point down the layer table, and heavy packages load late."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import shardgraph

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "shardgraph"

# A part of the package imports parts of lower layers and itself, nothing else.
LAYERS = {
    "errors": 0,
    "atomic": 0,
    "interrupt": 0,
    "processes": 1,
    "format": 1,
    "shards": 2,
    "sampling": 2,
    "collate": 3,
    "verify": 3,
    "indexing": 3,
    "facts": 4,
    "repair": 4,
    "per_graph": 5,
    "writer": 4,
    "prefetch": 4,
    "processing": 5,
    "convert": 5,
    "dataset": 6,
    "readahead": 7,
    "collator": 7,
    "epoch": 8,
    "loader": 9,
    "bench": 10,
    "cli": 11,
    "__main__": 12,
    "__init__": 12,
}

# What a part may import from elsewhere when it is itself imported ...
ALWAYS_THERE = {"h5py", "numpy", "torch", "torch_geometric", "tqdm", "xxhash"}
AT_IMPORT = {
    "errors": set(),
    "atomic": {"xxhash"},
    "interrupt": set(),
    "processes": set(),
    "format": {"numpy"},
    "shards": {"h5py", "numpy"},
    "sampling": {"numpy"},
    "collate": {"numpy", "torch", "torch_geometric"},
    "verify": {"numpy"},
    "writer": {"h5py", "numpy", "torch", "torch_geometric"},  # h5py for its version
    "indexing": {"numpy", "torch"},
    "facts": {"numpy", "torch_geometric"},
    "repair": {"numpy"},
    "per_graph": {"numpy"},
    "processing": {"torch_geometric"},
    "prefetch": {"numpy", "torch", "torch_geometric"},
    "convert": ALWAYS_THERE,
    "dataset": {"numpy", "torch", "torch_geometric"},
    "readahead": set(),
    "collator": {"numpy", "torch", "torch_geometric"},
    "epoch": {"numpy", "torch"},
    "loader": {"numpy", "torch", "torch_geometric"},
    "bench": set(),
    "cli": set(),
    "__main__": set(),
    "__init__": set(),
}
# ... and what only inside the function that needs it.
EXTRAS = {
    *("ase", "hdf5plugin", "lmdb", "matplotlib", "networkx", "pyarrow", "rdkit", "vesin", "yaml"),
}
WHEN_CALLED = {
    "shards": {"hdf5plugin"},
    "verify": {"tqdm"},
    "convert": EXTRAS,
    "bench": {"matplotlib"},
    "cli": ALWAYS_THERE | EXTRAS,
}


@dataclass(frozen=True)
class Import:
    """One imported module, and where."""

    module: str
    name: str | None  # of `from module import name`
    line: int
    in_function: bool


def imports_of(path: Path) -> list[Import]:
    """Every import of a file, those under TYPE_CHECKING and in functions included."""
    return list(_imports(ast.parse(path.read_text(encoding="utf-8"), str(path)), False))


def _imports(node: ast.AST, in_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, None, child.lineno, in_function)
        elif isinstance(child, ast.ImportFrom):
            module = "." * child.level + (child.module or "")
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, in_function)
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _imports(child, in_function or inside)


def part_of(path: Path) -> str:
    """The row of the table that a file of the package belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_part(entry: Import) -> str:
    """The row of the table that an import of the package's own refers to."""
    names = f"{entry.module}.{entry.name or ''}".split(".")
    is_part = len(names) > 1 and names[1] in LAYERS
    return names[1] if is_part else "__init__"


def faults_of(path: Path, part: str) -> list[str]:
    """What is wrong with the imports of a file, one sentence each."""
    faults = []
    for entry in imports_of(path):
        where = f"{path}:{entry.line} imports {entry.module}"
        package = entry.module.split(".")[0]
        if entry.module.startswith("."):
            faults.append(f"{where}: imports are absolute")
        elif package == "shardgraph":
            other = imported_part(entry)
            if other != part and LAYERS[other] >= LAYERS[part]:
                faults.append(
                    f"{where}: {other} (layer {LAYERS[other]}) is not below {part} "
                    f"(layer {LAYERS[part]})"
                )
        elif package not in sys.stdlib_module_names:
            allowed = AT_IMPORT[part] | (
                WHEN_CALLED.get(part, set()) if entry.in_function else set()
            )
            if package not in allowed:
                place = "in a function" if entry.in_function else "at module level"
                faults.append(f"{where} {place}: {part} may import {sorted(allowed)} there")
    return faults


def test_every_module_has_a_place_in_the_table() -> None:
    assert {part_of(path) for path in PACKAGE.rglob("*.py")} == set(LAYERS)


def test_imports_point_down() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert [fault for path in files for fault in faults_of(path, part_of(path))] == []


@pytest.mark.parametrize(
    ("part", "code", "fault"),
    [
        ("format", "import torch", "at module level: format may import ['numpy'] there"),
        ("format", "def f():\n    import torch", "in a function: format may import"),
        (
            "shards",
            "from shardgraph.sampling import plan",
            "sampling (layer 2) is not below shards",
        ),
        ("sampling", "import shardgraph.shards.pool", "shards (layer 2) is not below sampling"),
        ("shards", "import hdf5plugin", "at module level"),
        ("convert", "from rdkit import Chem", "at module level"),
        ("writer", "from shardgraph import loader", "loader (layer 9) is not below writer"),
        ("loader", "from shardgraph import DatasetWriter", "__init__ (layer 12) is not below"),
        ("writer", "from .format import Schema", "imports are absolute"),
        (
            "errors",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import shardgraph.format",
            "format (layer 1) is not below errors",
        ),
    ],
)
def test_the_rules_catch(part: str, code: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    (found,) = faults_of(path, part)
    assert fault in found


def test_the_rules_let_pass(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("import os\nimport h5py\nfrom shardgraph.format.schema import Schema\n")
    assert faults_of(path, "shards") == []
    path.write_text("def f():\n    from rdkit import Chem\n")
    assert faults_of(path, "convert") == []


def private_uses(path: Path) -> list[str]:
    """What a script uses of the package that is not a public name."""
    found = [
        f"{path}:{entry.line} imports {entry.module} {entry.name or ''}"
        for entry in imports_of(path)
        if entry.module.split(".")[0] == "shardgraph"
        and (entry.module != "shardgraph" or entry.name not in {None, *shardgraph.__all__})
    ]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "shardgraph"
    }
    found += [
        f"{path}:{node.lineno} uses {node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in aliases
        and node.attr not in {*shardgraph.__all__, "__version__"}
    ]
    return found


def test_tools_and_examples_use_the_public_api_only() -> None:
    convert = ROOT / "tools" / "convert.py"
    scripts = {*(ROOT / "tools").rglob("*.py"), *(ROOT / "examples").rglob("*.py")} - {convert}
    assert [use for path in sorted(scripts) for use in private_uses(path)] == []
    # This one is the command line under another name.
    (use,) = private_uses(convert)
    assert use.endswith("imports shardgraph.cli main")


@pytest.mark.parametrize("code", ["import shardgraph.writer", "import shardgraph as s\ns.loader"])
def test_a_private_use_is_caught(code: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(code)
    assert len(private_uses(path)) == 1


HELP = """
import runpy, sys
sys.argv = ["shardgraph", "--help"]
try:
    runpy.run_module("shardgraph", run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import shardgraph", id="import"),
        pytest.param("from shardgraph import BatchPlan, CorruptShardError, Schema", id="names"),
        pytest.param(HELP, id="help"),
    ],
)
def test_neither_torch_nor_pyg_is_loaded(code: str) -> None:
    report = "\nimport sys\nprint(sorted({'torch', 'torch_geometric'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
