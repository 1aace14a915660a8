"""Kills conversions at many moments and checks what they end in; a program of the resume tests.

``killed.py FOLDER steps STRIDE`` kills one before each STRIDE-th step that it takes on disk,
``killed.py FOLDER random SEED COUNT WORKERS`` some at random moments. Each conversion is a process
of its own, forked from this one, which has loaded all it needs. With SHUFFLE in the environment
they write in random order.
"""

import os
import random
import signal
import sys
import time
from itertools import count
from pathlib import Path

from numbers_source import Numbers, contents

from shardgraph import convert

SHUFFLE = int(os.environ["SHUFFLE"]) if "SHUFFLE" in os.environ else None
_STEPS = ("replace", "fsync", "unlink", "rmdir", "mkdir")


def convert_here(out, workers=1, delay=0.0):
    source = Numbers(count=90, size=30, bad={4, 40}, delay=delay)
    options = {"on_error": "skip", "shard_size": 2000, "progress": False, "shuffle": SHUFFLE}
    convert(source, out, workers=workers, **options)


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(target, *args):
    """Runs a function in a child process; returns its process id."""
    child = os.fork()
    if child:
        return child
    try:
        target(*args)
    except BaseException as error:  # noqa: BLE001 (all that a child can do is tell)
        say(f"{type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)


def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_before(step, out):
    """Converts, and is killed before the given step on disk."""
    steps = count()

    def counted(function):
        def call(*args, **kwargs):
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for name in _STEPS:
        setattr(os, name, counted(getattr(os, name)))
    convert_here(out)


def check(out, expected, when):
    found = contents(out)
    if found != expected:
        names = sorted(
            name for name in found.keys() | expected if found.get(name) != expected.get(name)
        )
        sys.exit(f"killed {when}: other files than uninterrupted: {names}")


def finish(out, expected, when):
    """Resumes a conversion, unless all that is left is to tidy up, and checks its files."""
    if not (out / "manifest.json").exists() or (out / ".conversion/state.json").exists():
        status = status_of(run(convert_here, out))
        if status != 0:
            sys.exit(f"exit status {status} when resumed, killed {when}")
        check(out, expected, when)


def at_steps(folder, expected, stride):
    for step in count(0, stride):
        out = folder / f"step-{step}"
        status = status_of(run(die_before, step, out))
        if status == 0:
            say(f"killed before {step // stride} steps of {step}")
            return
        if status != -signal.SIGKILL:
            sys.exit(f"exit status {status} when it was to be killed before step {step}")
        finish(out, expected, f"before step {step}")


def at_random(folder, expected, seed, kills, workers):
    rng = random.Random(seed)
    # From when a pool's processes work, to about when the work is done.
    first, last = (0.0, 0.7) if workers == 1 else (1.0, 4.0)
    for attempt in range(kills):
        out, moment = folder / f"random-{attempt}", rng.uniform(first, last)
        child = run(convert_here, out, workers, 0.004)
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
        status_of(child)
        finish(out, expected, f"after {moment:.3f} s")
    say(f"killed {kills} times")


if __name__ == "__main__":
    folder, mode, *rest = Path(sys.argv[1]), *sys.argv[2:]
    if status_of(run(convert_here, folder / "reference")):
        sys.exit("the uninterrupted conversion failed")
    reference = contents(folder / "reference")
    if mode == "steps":
        at_steps(folder, reference, *map(int, rest))
    else:
        at_random(folder, reference, *map(int, rest))
