"""Every case of real raw files, converted, against the figures that others have counted.

``expected.json`` beside the cases holds the figures by folder or file, and in some by part of it.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from shardgraph import ConversionError, Manifest, ShardedDataset
from shardgraph.convert import convert

CREDIT_CARDS = """
node_data:
- {file_name: customer.csv, ntype: customer, node_id_field: id}
- {file_name: transactions.csv, ntype: transaction, node_id_field: id}
edge_data:
- file_name: owns_card.csv
  etype: [customer, owns_card, creditcard]
  src_id_field: source
  dst_id_field: target
- file_name: paid_with.csv
  etype: [transaction, paid_with, creditcard]
  src_id_field: target
  dst_id_field: source
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A raw file, and the entry of ``expected.json`` that tells its figures."""

    key: str
    part: str | None = None
    """Of the entry, where that is of several files."""
    path: str
    options: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """What the numbers are, where the entry is a list or a single number."""

    def __str__(self):
        return self.path


MOLECULES = {
    "attentivefp/BBBP.csv": {"on_error": "skip"},
    "deepchem/delaney-processed.csv": {},
    "deepchem/sider.csv.gz": {},
    "deepchem/gdb1k.sdf": {"on_error": "skip"},
}
STRUCTURES = {
    ("metatrain_xyz", "ethanol"): "ethanol_reduced_100.xyz",
    ("schnetpack_asedb", "test_qm9"): "test_qm9.db",
    ("schnetpack_asedb", "test_iso"): "test_iso.db",
    ("fairchem_traj", "toy"): "toy_c3h8_relax.extxyz",
}
PAIRS = {
    ("graphfiles/kiara_gml", "karate"): ("karate.gml", "undirected"),
    ("graphfiles/kiara_gml", "lesmis"): ("lesmis.gml", "undirected"),
    ("graphfiles/kiara_gml", "celegansneural"): ("celegansneural.gml", "directed"),
    ("graphfiles/kiara_gexf", "lesmis"): ("lesmis.gexf", "undirected"),
    ("mtx/lagraph", "karate"): ("karate.mtx", "undirected"),
    ("mtx/lagraph", "west0067"): ("west0067.mtx", "directed"),
}
CASES = [
    *(Case(key=f"tudataset/{name}", path=f"tudataset/{name}") for name in ("MUTAG", "ENZYMES")),
    *(Case(key=f"ogb/{n}", path=f"ogb/{n}") for n in ("ogbg_molesol", "ogbg_molbace")),
    *(
        Case(key=f"molecules/{path}", path=f"molecules/{path}", options=options)
        for path, options in MOLECULES.items()
    ),
    *(
        Case(
            key="molecules/graphium",
            part=path.partition(".")[0],
            path=f"molecules/graphium/{path}",
        )
        for path in ("micro_ZINC.csv", "micro_qm9.parquet")
    ),
    *(
        Case(
            key="molecules/gdb13_1K_smi",
            part=part,
            path=f"molecules/gdb13_1K_smi/{part}.smi",
            names=("graphs",),
        )
        for part in ("train", "test", "valid")
    ),
    *(
        Case(
            key=f"atomistic/{folder}",
            part=part,
            path=f"atomistic/{folder}/{file}",
            names=("graphs", "nodes"),
        )
        for (folder, part), file in STRUCTURES.items()
    ),
    Case(key="atomistic/cgcnn_cif_regression", path="atomistic/cgcnn_cif_regression"),
    Case(key="lmdb/matsciml_carolina_db", path="lmdb/matsciml_carolina_db/data.lmdb"),
    *(
        Case(
            key="hdf5/deeprank_gnn",
            part=part,
            path=f"hdf5/deeprank_gnn/{file}",
            names=("graphs", "nodes", "directed"),
        )
        for part, file in (
            ("residue", "1ATN_residue.hdf5"),
            ("graph_residue", "graph_residue.hdf5"),
        )
    ),
    Case(key="planetoid/cora", path="planetoid/cora"),
    *(
        Case(key=key, part=part, path=f"{key}/{file}", names=("nodes", edges))
        for (key, part), (file, edges) in PAIRS.items()
    ),
    Case(key="graphfiles/networkx_atlas", path="graphfiles/networkx_atlas/atlas.dat.gz"),
    Case(
        key="hetero/tfgnn_creditcard",
        path="hetero/tfgnn_creditcard",
        options={"format": "dgl-csv"},
    ),
    Case(key="dgl/csvdataset_multiple_graphs", path="dgl/csvdataset_multiple_graphs"),
    Case(key="pyg_old/MUTAG_pyg2019/data.pt", path="pyg_old/MUTAG_pyg2019/data.pt"),
]


@pytest.fixture
def expected(cases):
    """The figures, by key."""
    return json.loads((cases / "expected.json").read_text())


@pytest.mark.filterwarnings("ignore::UserWarning:ase")  # of the occupancies in CIF files
@pytest.mark.parametrize("case", CASES, ids=str)
def test_figures(cases, expected, tmp_path, case):
    options = dict(case.options)
    if options.get("format") == "dgl-csv":
        options["meta"] = tmp_path / "meta.yaml"
        options["meta"].write_text(CREDIT_CARDS)
    report = convert(cases / case.path, tmp_path / "out", progress=False, **options)
    figures = expected[case.key] if case.part is None else expected[case.key][case.part]
    if case.names:
        values = figures if isinstance(figures, list) else [figures]
        figures = dict(zip(case.names, values, strict=True))
    if case.key == "hetero/tfgnn_creditcard":
        # They count line breaks; the last line of these files has none.
        figures = {name: count + 1 for name, count in figures.items()}
    if case.key == "graphfiles/networkx_atlas":
        figures["undirected"] = figures.pop("edges")
    dataset = ShardedDataset(tmp_path / "out")
    found = {name: measure(name, dataset, report, figures) for name in figures}
    assert found == figures


def measure(name, dataset, report, figures):
    """One figure of a dataset, by its name in ``expected.json``."""
    if name in ("graphs", "valid", "structures"):
        return len(dataset)
    if name in ("rows", "records", "entries"):
        return report.read
    if name in ("nodes", "atoms"):
        return report.nodes
    if name in ("directed", "directed_edges", "edges"):
        return report.edges
    if name in ("undirected", "undirected_edges", "edge_rows", "bonds"):
        return report.edges / 2
    if name == "classes" and isinstance(figures[name], dict):
        classes = Manifest.read(report.path).provenance["source"]["classes"]
        counts = Counter(int(data.y) for data in dataset)
        return {str(value): counts[number] for number, value in enumerate(classes)}
    if name == "split":
        return [len(dataset.split(part)) for part in ("train", "valid", "test")]
    if name in ("owns_card", "paid_with"):
        (graph,) = dataset
        (key,) = (key for key in graph.edge_types if name in key)
        return graph[key].num_edges
    return COUNTS[name](list(dataset))


def one_hot_columns(graphs):
    """Which columns of x hold zeros and ones only."""
    x = torch.cat([data.x for data in graphs])
    return ((x == 0) | (x == 1)).all(dim=0)


def repeated(data):
    return data.num_edges - torch.unique(data.edge_index, dim=1).size(1)


def isolated(data):
    return data.num_nodes - data.edge_index.unique().numel()


COUNTS = {
    "zero_node": lambda graphs: sum(data.num_nodes == 0 for data in graphs),
    "zero_edge": lambda graphs: sum(data.num_edges == 0 for data in graphs),
    "zero_edge_graphs": lambda graphs: sum(data.num_edges == 0 for data in graphs),
    "zero_bond": lambda graphs: sum(data.num_edges == 0 for data in graphs),
    "single_atom": lambda graphs: sum(data.num_nodes == 1 for data in graphs),
    "multi_fragment": lambda graphs: sum("." in data.smiles for data in graphs),
    "labels": lambda graphs: sum(bool(torch.isfinite(data.y).all()) for data in graphs),
    "isolated_nodes": lambda graphs: sum(map(isolated, graphs)),
    "node_labels": lambda graphs: int(one_hot_columns(graphs).sum()),
    "node_attrs": lambda graphs: int((~one_hot_columns(graphs)).sum()),
    "edge_labels": lambda graphs: graphs[0].edge_attr.size(1),
    "features": lambda graphs: graphs[0].x.size(1),
    "classes": lambda graphs: torch.cat([data.y for data in graphs]).unique().numel(),
    "self_loops": lambda g: sum(int((d.edge_index[0] == d.edge_index[1]).sum()) for d in g),
    "duplicates": lambda graphs: sum(map(repeated, graphs)),
}


def test_no_figure_is_left_out(cases, expected):
    told = set()
    for key, figures in expected.items():
        parted = isinstance(figures, dict) and any(
            isinstance(value, list | dict)
            for name, value in figures.items()
            if name != "classes" and name != "split"
        )
        parts = figures if parted or key == "molecules/gdb13_1K_smi" else [None]
        told |= {(key, part) for part in parts}
    compared = {(case.key, case.part) for case in CASES}
    assert compared <= told
    absent = {
        (key, part)
        for key, part in told
        if part is not None and not any((cases / key).glob(f"{part}*"))
    }
    assert told - compared <= absent


@pytest.fixture
def credit_cards(cases, tmp_path):
    """Returns the folder and its description."""
    meta = tmp_path / "meta.yaml"
    meta.write_text(CREDIT_CARDS)
    return cases / "hetero/tfgnn_creditcard", meta


def test_credit_cards_are_one_typed_graph(credit_cards, tmp_path):
    """Ids of 17 digits, beyond float64, and a table with its target first."""
    folder, meta = credit_cards
    convert(folder, tmp_path / "out", format="dgl-csv", meta=meta, progress=False)
    (graph,) = ShardedDataset(tmp_path / "out")
    rows = {
        path.stem: [line.split(",") for line in path.read_text().splitlines()[1:]]
        for path in folder.glob("*.csv")
    }
    ids = {
        "customer": [int(row[0]) for row in rows["customer"]],
        "transaction": [int(row[0]) for row in rows["transactions"]],
        "creditcard": sorted({int(row[1]) for row in (*rows["owns_card"], *rows["paid_with"])}),
    }
    assert graph["creditcard"].node_id.tolist() == ids["creditcard"]
    assert {kind: graph[kind].num_nodes for kind in graph.node_types} == {
        kind: len(found) for kind, found in ids.items()
    }
    for key in (
        ("customer", "owns_card", "creditcard"),
        ("transaction", "paid_with", "creditcard"),
    ):
        wanted = [tuple(map(int, row[:2])) for row in rows[key[1]]]
        ends = [
            [ids[kind][i] for i in index]
            for kind, index in zip(key[::2], graph[key].edge_index.tolist(), strict=True)
        ]
        assert list(zip(*ends, strict=True)) == wanted
    retries = graph["transaction", "paid_with", "creditcard"].retries
    assert retries.tolist() == [int(row[2]) for row in rows["paid_with"]]
    amounts = [float(row[2]) for row in rows["transactions"]]
    assert torch.equal(graph["transaction"].amount, torch.tensor(amounts))


def test_credit_cards_that_no_table_has(credit_cards, tmp_path):
    """The table of cards lacks some that edges name: with it, the graph is a reject."""
    folder, meta = credit_cards
    cards = "- {file_name: creditcard.csv, ntype: creditcard, node_id_field: id}\nedge_data:"
    meta.write_text(CREDIT_CARDS.replace("edge_data:", cards))
    with pytest.raises(ConversionError, match="joins a creditcard '1238474857489384', which is n"):
        convert(folder, tmp_path / "out", format="dgl-csv", meta=meta, progress=False)
