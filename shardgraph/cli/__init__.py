"""The command line, ``shardgraph convert | info | verify | repair | ...``: parse and call.

A command is a module of this package with ``HELP``, ``add_arguments`` and ``run``, and is named in
``COMMANDS``. At import a command's module loads only the standard library.

Exit status: 0 done; 1 failed, and nothing was published; 2 usage; 3 published, but with records
rejected or graphs lost; 130 interrupted by Ctrl-C, as shells have it.
"""

from __future__ import annotations

import argparse
import importlib
import io
import re
import signal
import sys
from collections.abc import Sequence

from shardgraph.errors import ShardGraphError

COMMANDS = ("convert", "info", "verify", "repair", "bench", "formats")

DONE, FAILED, USAGE, REJECTED = range(4)
INTERRUPTED = 128 + signal.SIGINT

_REQUIRED = {"h5py", "numpy", "torch", "torch_geometric", "tqdm", "xxhash"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may be no text, as on stderr
    given = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in given
    try:
        args = _parser(next((word for word in given if word in COMMANDS), None)).parse_args(given)
        status: int = args.run(args)
    except KeyboardInterrupt as stop:
        _complain(str(stop) or "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader, such as head, has seen enough
        return DONE
    except (ShardGraphError, OSError, ImportError) as error:
        return _fail(error, FAILED, debug=debug)
    except ValueError as error:
        return _fail(error, USAGE, debug=debug)
    return status


def _fail(error: Exception, status: int, *, debug: bool) -> int:
    if debug:
        raise error
    advice = ""
    if isinstance(error, ModuleNotFoundError) and error.name in _REQUIRED:
        advice = (
            ", which shardgraph is built on: activate its environment (source .venv/bin/activate), "
            "or install it into this one (pip install .)"
        )
    _complain(f"error: {error}{advice}")
    return status


def _complain(message: str) -> None:
    # Messages name an argument as Python and as the command line have it: here, the latter.
    flags_only = re.sub(r"\w+=[\w']+ \((--[a-z-]+(?: \w+)?)\)", r"\1", message)
    print(f"shardgraph: {flags_only}", file=sys.stderr)


def _parser(command: str | None) -> argparse.ArgumentParser:
    """The parser; only the command that was asked for is loaded and described in full."""
    parser = argparse.ArgumentParser(
        prog="shardgraph",
        description="Graph datasets on disk, read by PyTorch Geometric as if they were in memory.",
    )
    version = importlib.import_module(__name__.partition(".")[0]).__version__
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"{__name__}.{name}")
        sub = commands.add_parser(name, help=module.HELP, description=module.HELP)
        sub.set_defaults(run=module.run)
        sub.add_argument("--debug", action="store_true", help="show where an error came from")
        if name == command:
            module.add_arguments(sub)
    return parser
