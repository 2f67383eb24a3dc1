"""Jobs that save checkpoints to one place: each would resume from, and delete, what the other has saved."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.training.spec import TrainingJob, TrainingJobSpec
from avactl.program.program import Item, Program

_PATH = ("spec", "checkpoint", "path")


def _checkpoint_url(item: Item[TrainingJobSpec], program: Program) -> str:
    """Return the URL that a job saves its checkpoints to, without a slash at the end; "" for none or a volume."""
    checkpoint = item.spec.checkpoint
    return checkpoint.directory if checkpoint is not None else ""


def shared_checkpoint_problems(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield a problem if another job may save to the same place, or to a directory around it, at the same time."""

    def jobs_by_url() -> dict[str, list[Item[TrainingJobSpec]]]:
        found: dict[str, list[Item[TrainingJobSpec]]] = {}
        for other in program.of_kind(TrainingJob):
            if url := program.derive(other, _checkpoint_url):
                found.setdefault(url, []).append(other)
        return found

    url = _checkpoint_url(item, program)
    if not url:
        return
    jobs = program.memo("checkpoint directories", jobs_by_url)
    scheme, _, path = url.partition("://")
    levels = path.split("/")
    for count in range(len(levels), 0, -1):
        outer = f"{scheme}://{'/'.join(levels[:count])}"
        for other in jobs.get(outer, ()):
            later = outer != url or other.origin < item.origin
            if other is not item and later and not _in_order(item, other, program):
                where = "the same directory" if outer == url else f"the directory around it, {outer}"
                yield Diagnostic(
                    "shared-checkpoint",
                    f"{other} saves its checkpoints in {where}",
                    item.span(*_PATH),
                    hint="give each job a directory of its own, or let one start `after` the other",
                    notes=(Note(other.span(*_PATH), str(other)),),
                )
                return


def _in_order(one: Item[TrainingJobSpec], other: Item[TrainingJobSpec], program: Program) -> bool:
    """Return whether one of two jobs starts after the other, directly or not."""
    return one.team == other.team and (_starts_after(one, other, program) or _starts_after(other, one, program))


def _starts_after(item: Item[TrainingJobSpec], other: Item[TrainingJobSpec], program: Program) -> bool:
    seen: set[str] = set()
    ahead = list(item.spec.after)
    while ahead:
        name = ahead.pop()
        if name == other.spec_name:
            return True
        if name not in seen:
            seen.add(name)
            found = program.find_kind(TrainingJob, name, item.team)
            ahead += found.spec.after if found is not None else ()
    return False
