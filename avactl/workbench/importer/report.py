"""Show an import: what became of each object, what was not carried over, and what differs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from avactl.base.terminal import json_output
from avactl.diagnostics.redaction import MASK
from avactl.diagnostics.secrets import credential_shapes
from avactl.workbench.importer.model import LIVE, GivenValue, ImportOutcome, ImportResult, Loss
from avactl.workbench.importer.session import Imported

if TYPE_CHECKING:
    from avactl.workbench.importer.adopt import Adopted

_RESULT_ORDER = list(ImportResult)


def _mask_credentials(text: str) -> str:
    """Mask credentials, which a value at a wrong place may be, as diagnostics do."""
    return credential_shapes().sub(MASK, text)


def _place_text(given: GivenValue) -> str:
    span = given.span()
    return "live" if span.file == LIVE else f"{span.file}:{span.line}"


def table_rows(made: Imported) -> list[tuple[str, str, str, str, str, str]]:
    """Return the table: source, object, what it became, how, how many values are listed, and the file."""
    found = []
    listed = Counter(loss.source for loss in made.losses)
    for outcome in sorted(made.outcomes, key=lambda each: (each.given.span(), str(each.given))):
        spec = outcome.spec
        became = "-" if spec is None else spec.kind if spec.raw else str(spec)
        file = spec.file if spec else "-"
        count = str(listed[str(outcome.given)] or "-")
        found.append((_place_text(outcome.given), str(outcome.given), became, outcome.result.value, count, file))
    return found


def group_by_reason(made: Imported) -> list[tuple[str, list[ImportOutcome]]]:
    """Return objects that became no spec of a kind of their own, by reason."""
    groups: dict[str, list[ImportOutcome]] = {}
    for outcome in made.outcomes:
        if outcome.note:
            groups.setdefault(f"{outcome.result.value}: {_mask_credentials(outcome.note)}", []).append(outcome)
    return sorted(groups.items())


def _shared_losses(losses: list[Loss]) -> list[list[Loss]]:
    """Return losses by what is said of them: that of whole objects is said once."""
    said: dict[tuple[object, ...], list[Loss]] = {}
    for loss in losses:
        place = "live" if loss.span.file == LIVE else str(loss.span)
        said.setdefault((loss.path and place, loss.path, loss.why, loss.remedy), []).append(loss)
    return list(said.values())


def loss_title(losses: list[Loss]) -> str:
    """Return the title of the losses: their number, and that of the entries of `loss_lines` if several share one."""
    entries = len(_shared_losses(losses))
    shared = f", in {_count(entries, 'entry', 'entries')}" if entries != len(losses) else ""
    return f"{_count(len(losses), 'value')} not carried over as {'it is' if len(losses) == 1 else 'they are'}{shared}"


def loss_lines(losses: list[Loss]) -> list[str]:
    """Return two lines for each loss: where and what, then why and what to do. What objects share is said once."""
    lines: list[str] = []
    for loss, *others in _shared_losses(losses):
        place = "live" if loss.span.file == LIVE else str(loss.span)
        more = f" and {len(others)} more" if others else ""
        lines.append(f"  {place}  {loss.source}{more}  {loss.path or '(object)'}")
        lines.append(_mask_credentials(f"      {loss.why}" + (f" → {loss.remedy}" if loss.remedy else "")))
    return lines


def difference_lines(made: Imported, sign: dict[str, str] | None = None) -> list[str]:
    """Return the semantic differences of each spec; specs without any are counted in one line."""
    lines: list[str] = []
    same = 0
    for each in made.compared:
        if each.spec.raw and not each.lines:
            same += 1
            continue
        lines.append(f"{each.spec} compared with {each.spec.given[0]}")
        lines += [f"  {(sign or {}).get(line.sign, line.sign)} {_mask_credentials(line.text)}" for line in each.lines]
        if each.added:
            lines.append(f"  + set by avactl: {_first_names(each.added)}")
        if each.objects:
            lines.append(f"  + {_count(len(each.objects), 'object')}: {_first_names(each.objects)}")
    if same:
        compile_to = "spec compiles to its source" if same == 1 else "specs compile to their source"
        lines.append(f"{same} {compile_to}, but for labels of avactl and what servers and deployment tools filled in")
    return lines


def _count(number: int, what: str, several: str = "") -> str:
    return f"{number} {what if number == 1 else several or what + 's'}"


def _first_names(names: list[str], most: int = 6) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def import_summary(made: Imported) -> str:
    """Return one line: how many objects became how many specs, and how."""
    counts = Counter(outcome.result for outcome in made.outcomes)
    shown = ", ".join(f"{counts[result]} {result.value}" for result in _RESULT_ORDER if counts[result])
    specs = sum(bool(spec.given) for spec in made.specs)
    return f"{_count(len(made.outcomes), 'object')} → {_count(specs, 'spec')}: {shown}"


def is_exact(made: Imported) -> bool:
    """Return True if nothing is listed, nothing is left out, and no object differs from its source."""
    left = any(outcome.result is ImportResult.left_out for outcome in made.outcomes)
    return not left and not made.losses and not any(each.lines for each in made.compared)


def adopted_lines(adopted: Adopted) -> list[str]:
    """Return what was adopted, and what was not, by reason."""
    done = sum(each.done for each in adopted.objects)
    able = sum(not each.reason for each in adopted.objects)
    lines = (
        [f"adopted {_count(done, 'object')}; no pod restarts"]
        if not adopted.later
        else [f"{_count(able, 'object')} can be adopted without a restart: {adopted.later}"]
    )
    for each in adopted.objects:
        if each.reason:
            lines.append(f"  not adopted: {each.title}: {each.reason}")
    return lines


def as_json(made: Imported, adopted: Adopted | None = None) -> str:
    """Return the whole report for programs."""
    listed = Counter(loss.source for loss in made.losses)
    data: dict[str, Any] = {
        "cluster": made.cluster,
        "exact": is_exact(made),
        "objects": [
            {
                "source": str(outcome.given.span()),
                "kind": outcome.given.kind,
                "namespace": outcome.given.namespace,
                "name": outcome.given.name,
                "result": outcome.result.name,
                "listed": listed[str(outcome.given)],
                "reason": _mask_credentials(outcome.note),
                "spec": str(outcome.spec) if outcome.spec else None,
                "file": outcome.spec.file if outcome.spec else None,
            }
            for outcome in sorted(made.outcomes, key=lambda each: (each.given.span(), str(each.given)))
        ],
        "losses": [
            {
                "source": str(loss.span),
                "object": loss.source,
                "path": loss.path,
                "why": _mask_credentials(loss.why),
                "remedy": _mask_credentials(loss.remedy),
                "carried": loss.carried,
            }
            for loss in made.losses
        ],
        "differences": [
            {
                "spec": str(each.spec),
                "changes": [{"sign": line.sign, "text": _mask_credentials(line.text)} for line in each.lines],
                "added": each.added,
                "objects": each.objects,
            }
            for each in made.compared
            if each.lines or each.added or each.objects
        ],
        "files": sorted(made.files),
    }
    if adopted is not None:
        data["adoption"] = {
            "later": adopted.later,
            "objects": [
                {"object": each.title, "adopted": each.done, "reason": each.reason} for each in adopted.objects
            ],
        }
    return json_output(data)
