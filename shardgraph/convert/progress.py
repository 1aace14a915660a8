"""The progress bar of a conversion: records done, their rate, and bytes on disk."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from shardgraph.convert.report import nbytes_text

_SECONDS = 2.0  # between looks at the sizes of the shards


class Progress:
    """A bar on stderr where that is a terminal, and nothing where it is not."""

    def __init__(self, directory: Path, total: int | None, *, show: bool) -> None:
        self._directory = directory
        self._show = show
        self._next_look = 0.0
        self._bar: Any = tqdm(
            total=total, unit=" records", unit_scale=True, disable=None if show else True
        )

    def advance(self, count: int) -> None:
        """Counts records that are done with."""
        self._bar.update(count)
        if not self._bar.disable and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _SECONDS
            sizes = (path.stat().st_size for path in self._directory.glob("shard-*.h5"))
            self._bar.set_postfix_str(f"{nbytes_text(sum(sizes))} written")

    def say(self, text: str) -> None:
        """Writes a line on stderr, above the bar, terminal or not."""
        if self._show:
            tqdm.write(text, file=sys.stderr)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()
