"""Molecules as SMILES: a column of a CSV or TSV file, or a .smi file; plain or .gz."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardgraph.convert import table as tables
from shardgraph.convert.files import suffix_of
from shardgraph.convert.source import Confidence, Option, Partition, Reject, Source, require
from shardgraph.convert.sources import _rdkit
from shardgraph.errors import ConversionError, FormatError, SchemaError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_SMILES_NAMES = (
    "smiles",
    "canonical_smiles",
    "canonical smiles",
    "isomeric_smiles",
    "isosmiles",
    "smi",
    "mol",
    "molecule",
    "structure",
)
_TABLES = frozenset({".csv", ".tsv", ".tab", ".txt"})
_LINES = frozenset({".smi", ".smiles", ".ism"})
# Rows looked at to tell columns of numbers: in MoleculeNet's sparsest table (MUV, 17 targets,
# 84 % missing) each target has its first value well before.
_SNIFFED_ROWS = 1000


class SmilesSource(Source):
    """Reads one molecule a row: x int64 [N, 9], edge_index and edge_attr int64 [E, 3] of PyG.

    ``smiles`` is the text itself and ``y`` float32 [1, T] the targets, NaN where missing; without
    targets there is no ``y``. The features are those of ``torch_geometric.utils.from_smiles``.

    Args:
        spec: The file.
        smiles: Column of the SMILES; None recognises one by name.
        targets: Columns of numbers that become ``y``; None takes all columns of numbers but
            those named like an identifier (none in a .smi file), an empty list none.
        no_header: The first row is data; the columns are then named "0", "1", ...
        with_hydrogen: Adds the hydrogens as atoms.
        kekulize: Turns aromatic bonds into single and double ones.
    """

    name = "smiles"
    description = "molecules as SMILES in a CSV or TSV file or a .smi file, plain or .gz"
    extra = "chem"
    records_per_partition = _rdkit.RECORDS_PER_PARTITION
    options = (
        Option(name="smiles", type=str, help="column of the SMILES (recognised by name)"),
        Option(name="targets", type=str, many=True, help="columns that become y (all of numbers)"),
        Option(name="no_header", type=bool, help="the first row is data", default=False),
        Option(name="with_hydrogen", type=bool, help="add hydrogens as atoms", default=False),
        Option(
            name="kekulize", type=bool, help="single and double for aromatic bonds", default=False
        ),
    )

    def __init__(
        self,
        spec: str,
        *,
        smiles: str | None = None,
        targets: Sequence[str] | None = None,
        no_header: bool = False,
        with_hydrogen: bool = False,
        kekulize: bool = False,
    ) -> None:
        super().__init__(spec)
        require("rdkit", "chem", "reading SMILES")
        self._smiles = smiles
        self._targets = targets if targets is None else tuple(targets)
        self._no_header = no_header
        self._with_hydrogen = with_hydrogen
        self._kekulize = kekulize

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of .smi, and of a table with a column named like SMILES."""
        suffix = suffix_of(Path(spec))
        if suffix in _LINES:
            return Confidence.CERTAIN
        if suffix not in _TABLES:
            return None
        try:
            columns = tables.open_table(spec).columns
        except (OSError, FormatError, ConversionError):
            return None
        return Confidence.CERTAIN if smiles_column(columns) else None

    def partitions(self) -> Sequence[Partition]:
        """Runs of 2,000 rows."""
        self._columns  # noqa: B018 (a wrong column is an error before any work)
        return self._table.partitions(self.records_per_partition)

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields a `Data` or a `Reject` per row."""
        position, targets = self._columns
        for row in self._table.read(partition):
            yield self._graph(row, position, targets)

    def provenance(self) -> dict[str, Any]:
        """The columns chosen, beside the file."""
        position, targets = self._columns
        columns = self._table.columns
        return super().provenance() | {
            "targets": [columns[target] for target in targets],
            "options": {
                "smiles": columns[position],
                "with_hydrogen": self._with_hydrogen,
                "kekulize": self._kekulize,
            },
        }

    @cached_property
    def _table(self) -> tables.Table:
        if suffix_of(Path(self.spec)) not in _LINES:
            return tables.open_table(self.spec, header=not self._no_header)
        first = next(tables.iter_rows(self.spec, None), None)
        if first is None:
            raise FormatError(f"{self.spec} is empty: SMILES were expected")
        if first.fields[0].casefold() in _SMILES_NAMES and not self._no_header:
            return tables.Table(
                path=self.spec,
                delimiter=None,
                columns=first.fields,
                offset=first.end,
                line=first.end_line,
            )
        columns = ("SMILES", *(str(i) for i in range(1, len(first.fields))))
        return tables.Table(
            path=self.spec, delimiter=None, columns=columns, offset=first.offset, line=first.line
        )

    @cached_property
    def _columns(self) -> tuple[int, list[int]]:
        """Positions of the SMILES and of the targets."""
        table, smiles = self._table, self._smiles
        if smiles is None and table.delimiter is None:
            smiles = table.columns[0]
        smiles = smiles or smiles_column(table.columns)
        if smiles is None:
            raise ValueError(
                f"{self.spec} has no column named like SMILES; name the column to use, one of "
                f"{', '.join(repr(column) for column in table.columns)}"
            )
        targets = self._targets
        if targets is None:
            numeric = [] if table.delimiter is None else table.numeric_columns(_SNIFFED_ROWS)
            targets = tuple(name for name in numeric if name not in (smiles, self.split_by))
        return table.column(smiles), [table.column(target) for target in targets]

    def _graph(self, row: tables.Row, position: int, targets: list[int]) -> BaseData | Reject:
        table = self._table
        if row.error is not None:
            return table.reject(row)
        smiles = row.fields[position].strip()
        y = tables.parse_numbers(row, table, targets)
        if isinstance(y, Reject):
            return y
        found = _rdkit.from_smiles(
            smiles, with_hydrogen=self._with_hydrogen, kekulize=self._kekulize
        )
        if isinstance(found, str):
            return table.reject(row, found)
        if self.split_by in table.columns:
            found[self.split_by] = "".join(row.fields[table.column(self.split_by) :][:1]).strip()
        found.smiles = smiles
        if targets:
            try:
                found.y = _rdkit.row_tensor(y)
            except SchemaError as error:
                return table.reject(row, str(error))
        return found


def smiles_column(columns: Sequence[str]) -> str | None:
    """The column that is named like SMILES; None where there is none."""
    by_name = {column.casefold(): column for column in reversed(columns)}
    return next((by_name[name] for name in _SMILES_NAMES if name in by_name), None)
