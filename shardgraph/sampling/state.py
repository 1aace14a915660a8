"""The place of a run in its plan, as a small dict that survives JSON.

The place is (epoch, cursor), where the cursor counts batches of the global sequence, so that it
means the same for any number of ranks. A fingerprint says everything that decides the sequence; a
place is refused by any other plan.
"""

from collections.abc import Mapping

STATE_VERSION = 2
"""Raised whenever the same arguments would give another sequence."""

Fingerprint = Mapping[str, int | str | bool | None]


def write_state(epoch: int, cursor: int, fingerprint: Fingerprint) -> dict[str, object]:
    """Return the state of a run that has used ``cursor`` batches of the global sequence."""
    return {"version": STATE_VERSION, "epoch": epoch, "cursor": cursor, "plan": dict(fingerprint)}


def read_state(state: Mapping[str, object], fingerprint: Fingerprint) -> tuple[int, int]:
    """Return ``(epoch, cursor)``.

    Raises:
        TypeError: If ``state`` or its plan is not a mapping.
        ValueError: If it is not a state, is of another version, or belongs to another plan; the
        message
            says how the plans differ.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"A plan's state is a dict from state_dict(), got {type(state).__name__}.")
    missing = [name for name in ("version", "epoch", "cursor", "plan") if name not in state]
    if missing:
        raise ValueError(f"This is not a state of a BatchPlan: it lacks {', '.join(missing)}.")
    if state["version"] != STATE_VERSION:
        raise ValueError(
            f"The state has version {state['version']!r}, this release reads {STATE_VERSION}. "
            "Resume with the release that wrote it, or start the epoch again."
        )
    epoch, cursor, plan = state["epoch"], state["cursor"], state["plan"]
    for name, value in (("epoch", epoch), ("cursor", cursor)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"The state's {name} must be a whole number from 0 on, got {value!r}.")
    if not isinstance(plan, Mapping):
        raise TypeError(f"The state's plan must be a dict, got {type(plan).__name__}.")
    _check_same(plan, fingerprint)
    assert isinstance(epoch, int)
    assert isinstance(cursor, int)
    return epoch, cursor


def _check_same(plan: Mapping[str, object], fingerprint: Fingerprint) -> None:
    names = [*fingerprint, *(name for name in plan if name not in fingerprint)]
    differences = [
        f"{name} was {plan.get(name)!r} and is {fingerprint.get(name)!r}"
        for name in names
        if plan.get(name) != fingerprint.get(name)
    ]
    if differences:
        raise ValueError(
            f"The state belongs to another plan: {'; '.join(differences)}. "
            "Resume with the dataset and options it was saved with, or start again without it."
        )
