import gzip

import pytest
import torch

HEADER = "%%MatrixMarket matrix "


@pytest.fixture
def read(tmp_path, read_all):
    def read(text, name="a.mtx"):
        (tmp_path / name).write_text(HEADER + text)
        graphs, rejects = read_all(tmp_path / name)
        assert len(graphs) + len(rejects) == 1
        return graphs[0] if graphs else rejects[0].reason

    return read


def test_general_real(read):
    graph = read("coordinate real general\n% a note\n\n3 3 4\n3 1 -.5\n1 2 1e3\n1 1 2\n1 2 0\n")
    assert graph.edge_index.tolist() == [[0, 0, 0, 2], [0, 1, 1, 0]]
    assert graph.edge_weight.tolist() == [2, 1000, 0, -0.5]
    assert (graph.edge_weight.dtype, graph.num_nodes) == (torch.float32, 3)


def test_symmetric_pattern_is_mirrored_off_the_diagonal(read):
    graph = read("coordinate pattern symmetric\n4 4 3\n2 1\n2 2\n3 1\n")
    assert graph.edge_index.tolist() == [[0, 0, 1, 1, 2], [1, 2, 0, 1, 0]]
    assert "edge_weight" not in graph
    assert graph.num_nodes == 4


@pytest.mark.parametrize(
    ("text", "values", "dtype"),
    [
        ("integer symmetric\n2 2 1\n2 1 7\n", [7, 7], torch.int64),
        ("Integer Skew-Symmetric\n2 2 1\n2 1 7\n", [-7, 7], torch.int64),
        ("complex hermitian\n2 2 1\n2 1 1 2\n", [1 - 2j, 1 + 2j], torch.complex64),
    ],
)
def test_other_symmetries(read, text, values, dtype):
    graph = read("coordinate " + text)
    assert graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert graph.edge_weight.tolist() == values
    assert graph.edge_weight.dtype == dtype


def test_dense(read):
    graph = read("array real general\n2 2\n0\n1\n2\n3\n")
    assert graph.edge_index.tolist() == [[0, 1, 1], [1, 0, 1]]
    assert graph.edge_weight.tolist() == [2, 1, 3]
    graph = read("array real symmetric\n2 2\n5\n1\n0\n")
    assert graph.edge_index.tolist() == [[0, 0, 1], [0, 1, 0]]
    assert graph.edge_weight.tolist() == [5, 1, 1]


def test_rectangular_is_bipartite(read):
    graph = read("coordinate integer general\n2 5 2\n2 5 1\n1 3 9\n")
    assert (graph["row"].num_nodes, graph["column"].num_nodes) == (2, 5)
    assert graph["row", "to", "column"].edge_index.tolist() == [[0, 1], [2, 4]]
    assert graph["row", "to", "column"].edge_weight.tolist() == [9, 1]


def test_empty_matrix(read):
    graph = read("coordinate pattern general\n3 3 0\n")
    assert (graph.num_nodes, graph.edge_index.shape) == (3, (2, 0))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("coordinate real\n", "line 1: .* is not a header"),
        ("coordinate real general\n3 x 1\n", "line 2: '3 x 1' are not sizes"),
        ("coordinate real general\n3 3\n", "line 2: '3 3' are not sizes"),
        ("coordinate real general\n2 2 1\n\n1 2 x\n", "line 4: could not convert string 'x'"),
        ("coordinate real general\n2 2 1\n1 2\n", "line 3: invalid column index"),
        ("coordinate real general\n2 2 1\n1 3 1\n", r"entry 1: \[1, 3\] is outside of \(2, 2\)"),
        ("coordinate real general\n2 2 2\n1 1 1\n", "1 entries, where the header tells 2"),
        ("coordinate real symmetric\n2 3 0\n", "is not square"),
        ("array real general\n2 2\n1\n", "1 values, where .* needs 4"),
        ("array real symmetric\n2 2\n1\n", "1 values, where .* needs 3"),
        ("array real skew-symmetric\n3 3\n1\n", "1 values, where .* needs 3"),
        # More values than memory holds places of.
        ("array real general\n1000000 1000000\n1\n", "1 values, where .* needs 1000000000000"),
        ("coordinate real general\n2 2 1\n1.5 2 1\n", "'row or column' holds 1.5, which int64"),
        ("array pattern general\n2 2\n1\n", "cannot be a pattern"),
    ],
)
def test_faults_are_rejects_with_their_line(read, text, reason):
    import re

    assert re.search(reason, read(text))


def test_folder_and_gzip(tmp_path, read_all):
    for i in (10, 9, 2):
        text = f"{HEADER}coordinate pattern general\n{i} {i} 0\n"
        (tmp_path / f"m{i}.mtx.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "m3.mtx").write_text("nonsense")
    (tmp_path / "notes.txt").write_text("")
    graphs, rejects = read_all(tmp_path)
    assert [graph.num_nodes for graph in graphs] == [2, 9, 10]
    assert [reject.file for reject in rejects] == [str(tmp_path / "m3.mtx")]


def test_cases(case, read_all):
    (karate,), _ = read_all(case("mtx/lagraph/karate.mtx"))
    assert karate.is_undirected()
    path = case("mtx/lagraph/west0067.mtx")
    (west,), _ = read_all(path)
    lines = [line.split() for line in path.read_text().splitlines() if line[0] != "%"][1:]
    wanted = sorted((int(row) - 1, int(column) - 1, float(value)) for row, column, value in lines)
    assert west.edge_index.t().tolist() == [[row, column] for row, column, _ in wanted]
    assert torch.equal(west.edge_weight, torch.tensor([value for _, _, value in wanted]))


def test_sizes_beyond_64_bits(tmp_path, read_all):
    (tmp_path / "a.mtx").write_text(
        f"%%MatrixMarket matrix coordinate pattern general\n{2**70} {2**70} 1\n1 2\n"
    )
    _, (reject,) = read_all(tmp_path / "a.mtx")
    assert reject.reason.endswith(f"line 2: '{2**70} {2**70} 1' are beyond 64 bits")
