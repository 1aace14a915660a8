"""RDKit molecules to PyG graphs, with the reason where that is impossible; shared by sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardgraph.convert.build import as_dtype

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

RECORDS_PER_PARTITION = 2_000
"""Of molecules: one to two seconds of work, so that a few workers end at about the same time."""


def from_smiles(smiles: str, *, with_hydrogen: bool, kekulize: bool) -> Data | str:
    """The graph of ``torch_geometric.utils.from_smiles``, or why there is none.

    PyG itself returns an empty graph for a SMILES that RDKit cannot read.
    """
    from rdkit import Chem

    if not smiles:
        return "no SMILES"
    if not smiles.isprintable():
        return "the SMILES holds bytes that are not text (UTF-8)"
    mol = parse(Chem.MolFromSmiles, smiles, "not a SMILES that RDKit can read (syntax error)")
    if isinstance(mol, str):
        return mol
    if with_hydrogen:
        mol = Chem.AddHs(mol)
    if kekulize:
        Chem.Kekulize(mol)
    return from_mol(mol)


def parse(parser: Callable[..., Any], text: str, otherwise: str, **options: bool) -> Any:
    """The molecule that an RDKit parser makes of `text`, or a sentence on why there is none.

    RDKit prints its complaints on stderr; they are held back and asked for instead.
    """
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        mol = parser(text, **options)
        if mol is not None:
            return mol
        unchecked = parser(text, sanitize=False, **options)
        if unchecked is None:
            return otherwise
        problems = [problem.Message() for problem in Chem.DetectChemistryProblems(unchecked)]
    return "; ".join(problems) or "RDKit rejects the molecule"


def from_mol(mol: Any) -> Data | str:
    """The graph of a molecule: x int64 [N, 9], edge_index [2, E] and edge_attr [E, 3] int64.

    Returns a sentence for an atom or bond beyond PyG's tables of features.
    """
    from torch_geometric.utils.smiles import from_rdmol

    try:
        data: Data = from_rdmol(mol)
    except ValueError as error:
        return f"an atom or bond is outside the feature tables of PyG: {error}"
    return data


def add_positions(data: Data, mol: Any) -> None:
    """Adds z int64 [N] and pos float32 [N, 3] (angstrom) of the molecule's first conformer."""
    import torch

    data.z = data.x[:, 0].clone()
    if mol.GetNumConformers():
        data.pos = torch.from_numpy(mol.GetConformer().GetPositions()).float().view(-1, 3)


def row_tensor(values: Sequence[float]) -> Tensor:
    """The targets of one graph: float32 [1, T]; SchemaError where one is too large for that."""
    import torch

    return torch.from_numpy(as_dtype([values], np.float32, "y"))
