"""Draws reports as bars, one panel a question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Report


def draw(reports: Sequence[Report], path: Path) -> None:
    """Writes a PNG; shardgraph's own bars stand out.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("--plot needs matplotlib: pip install 'shardgraph[plot]'") from error
    heights = [1.0 + 0.28 * len(report.bars) for report in reports]
    figure = Figure(figsize=(8.0, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(reports), 1, squeeze=False, height_ratios=heights)[:, 0]
    for report, axes in zip(reports, panels, strict=True):
        labels = [label for label, _ in report.bars]
        values = [value for _, value in report.bars]
        ours = [label.startswith(("shardgraph", "packed", "PyG batch")) for label in labels]
        colors = ["#1b6ca8" if own else "#b8bec4" for own in ours]
        bars = axes.barh(range(len(labels)), values, color=colors)
        texts = [f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for value in values]
        axes.bar_label(bars, texts, padding=3, fontsize=7)
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel(report.unit, fontsize=8)
        axes.set_title(report.question, fontsize=9, loc="left")
    figure.savefig(path, dpi=150)
