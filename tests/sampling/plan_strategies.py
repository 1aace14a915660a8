"""Plans of every kind, for property tests of what they all promise."""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from shardgraph.sampling import BatchPlan

MAX_GRAPHS = 120
NODES = np.random.default_rng(0).integers(1, 30, MAX_GRAPHS).astype(np.int32)
EDGES = (NODES * np.random.default_rng(1).uniform(1, 4, MAX_GRAPHS)).astype(np.int64)
WEIGHTS = np.random.default_rng(2).integers(0, 4, MAX_GRAPHS) / 2
WEIGHTS[:3] = 1
DRAWING = ("weights", "num_samples", "replacement")


def lists(batches):
    return [batch.tolist() for batch in batches]


@st.composite
def shuffles(draw, num_graphs, *, needed):
    options = {
        "shuffle": draw(st.sampled_from([True, "full", "window"] + [False] * (not needed))),
        "seed": draw(st.integers(0, 3)),
    }
    if options["shuffle"] == "window":
        # Blocks of 2 to 6 graphs, so that there are several windows.
        options["nbytes"] = num_graphs * (1 << 19) // draw(st.integers(2, 6))
    return options


@st.composite
def budgets(draw, num_graphs):
    """Any combination of budgets, by type or not, with what becomes of a graph over them."""
    nodes, edges = NODES[:num_graphs], EDGES[:num_graphs]
    kinds = draw(st.sets(st.sampled_from(["nodes", "edges", "graphs", "types"]), min_size=1))
    options = {"oversized": draw(st.sampled_from(["alone", "skip"]))}
    if "types" in kinds:
        options["num_nodes"] = {"a": nodes // 2, "b": nodes - nodes // 2}
        options["max_nodes"] = draw(st.sampled_from([{"a": 12}, {"a": 30, "b": 25}, {"b": 40}, 60]))
        options["num_edges"] = {("a", "to", "b"): edges // 3, "b__to__b": edges - edges // 3}
        options["max_edges"] = {"a__to__b": 60, ("b", "to", "b"): 100}
    if "nodes" in kinds:
        options |= {"num_nodes": nodes, "max_nodes": draw(st.sampled_from([25, 40, 100]))}
    if "edges" in kinds:
        options |= {"num_edges": edges, "max_edges": draw(st.sampled_from([70, 200]))}
    if "graphs" in kinds:
        options["max_graphs"] = draw(st.integers(1, 12))
    return options


def can_draw(num_graphs, options):
    """Whether enough graphs are left when those over a budget are skipped."""
    others = {name: value for name, value in options.items() if name not in DRAWING}
    kept = BatchPlan(num_graphs, **others)
    left = {graph for batch in kept.batches() for graph in batch.tolist()}
    available = sum(bool(WEIGHTS[graph]) for graph in left)
    return available >= (1 if options["replacement"] else options["num_samples"])


@st.composite
def plans(draw):
    """``(num_graphs, options)`` of a plan with any combination of options but ranks."""
    num_graphs = draw(st.integers(0, MAX_GRAPHS))
    options = {}
    if num_graphs >= 3 and draw(st.booleans()):
        options["weights"] = WEIGHTS[:num_graphs]
        options["replacement"] = draw(st.booleans())
        if not options["replacement"]:
            options["num_samples"] = draw(
                st.integers(0, int(np.count_nonzero(WEIGHTS[:num_graphs])))
            )
        elif draw(st.booleans()):
            options["num_samples"] = draw(st.integers(0, MAX_GRAPHS))
    options |= draw(shuffles(num_graphs, needed="weights" in options))
    if draw(st.booleans()):
        options["batch_size"] = draw(st.integers(1, 12))
    else:
        options |= draw(budgets(num_graphs))
        if "weights" in options and options["oversized"] == "skip":
            assume(can_draw(num_graphs, options))
    end = draw(st.sampled_from([None, "drop_last", "pad_ranks"]))
    return num_graphs, options if end is None else {**options, end: True}
