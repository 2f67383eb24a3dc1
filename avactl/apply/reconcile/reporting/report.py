"""The report of a run, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from avactl.apply.reconcile.actions import Action, ReconcileStep, masked_values
from avactl.apply.reconcile.diffing.managed_fields import ABSENT
from avactl.apply.reconcile.health import Health, HealthState
from avactl.base.terminal import count_text, inert_text, shorten_middle, visible_text
from avactl.diagnostics.redaction import redact_text

_MAX_LINES = 40
_MAX_FIELDS = 4
_MAX_MESSAGE_LENGTH = 2000
"""Longest API server message shown, in characters."""
_MAX_VALUE_LENGTH = 80
"""Longest value shown, in characters; an image with its digest is longer."""
_ADMINISTRATOR_HINT = "this account lacks the rights; run `avactl reconcile --once` with theirs"
_ACTION_SIGNS = {
    Action.create: ("+", "created"),
    Action.change: ("~", "changed"),
    Action.recreate: ("±", "recreated"),
    Action.restore: ("↺", "reverted"),
    Action.prune: ("-", "pruned"),
    Action.keep: ("=", "kept"),
    Action.wait: ("…", "waiting"),
}


@dataclass(slots=True)
class StepResult:
    """The result of one run."""

    cluster: str
    inventory: str
    commit: str = ""
    steps: list[ReconcileStep] = field(default_factory=list)
    health: dict[str, Health] = field(default_factory=dict)
    """Objects that are unhealthy or still waiting at the end, by title."""
    problem: str = ""
    """The reason why nothing, or not everything, was done."""
    context: str = ""
    """Context of the kubeconfig; empty for the account of a pod."""
    carries: tuple[str, ...] = ()
    """Other Clusters that the Kubernetes cluster carries."""
    claimed: bool = False
    """True if the Kubernetes cluster carries the Cluster from this run on."""
    dry_run: bool = False
    unreachable: bool = False
    """True if the problem is that the API server is unreachable."""
    unseen: list[str] = field(default_factory=list)
    """Kinds that the account is not permitted to list."""

    @property
    def failed(self) -> list[ReconcileStep]:
        """Steps that failed."""
        return [step for step in self.steps if step.error]

    @property
    def drift(self) -> list[ReconcileStep]:
        """Steps that correct drift."""
        return [step for step in self.steps if step.action is Action.restore]

    @property
    def rewritten(self) -> list[ReconcileStep]:
        """Steps of objects that differ from git, and would again after an apply: admission rewrites them."""
        return [step for step in self.steps if step.action is Action.none and step.differences]

    @property
    def changed(self) -> bool:
        """Return whether the run wrote anything, or a dry run would have."""
        quiet = (Action.none, Action.keep, Action.wait, Action.refuse)
        return any(step.action not in quiet for step in self.steps)

    @property
    def complete(self) -> bool:
        """Return whether the cluster matches git."""
        return not self.problem and not self.failed

    @property
    def ok(self) -> bool:
        """Return whether everything is applied and healthy."""
        unhealthy = any(h.state in (HealthState.failed, HealthState.progressing) for h in self.health.values())
        return self.complete and not unhealthy

    def counts(self) -> dict[str, int]:
        """Count the objects by outcome."""
        found = Counter("failed" if step.error else _outcome_word(step) for step in self.steps)
        order = (*(word for _, word in _ACTION_SIGNS.values()), "failed", "unchanged")
        return {word: found[word] for word in order if found[word] or word == "unchanged"}

    def summary(self) -> str:
        """Return e.g. `296 objects: 294 created, 2 waiting, 0 unchanged`."""
        counts = ", ".join(f"{count} {word}" for word, count in self.counts().items())
        return f"{len(self.steps)} objects: {counts}"


def _outcome_word(step: ReconcileStep) -> str:
    return _ACTION_SIGNS[step.action][1] if step.action in _ACTION_SIGNS else "unchanged"


def as_json(result: StepResult) -> dict[str, Any]:
    """Return the report as JSON data."""
    return {
        "cluster": result.cluster,
        "context": result.context,
        "carries": list(result.carries),
        "claimed": result.claimed,
        "inventory": result.inventory,
        "commit": result.commit,
        "dryRun": result.dry_run,
        "ok": result.ok,
        "problem": redact_text(result.problem),
        "counts": result.counts(),
        "objects": [
            _object_data(step) for step in result.steps if step.action is not Action.none or step.reason or step.error
        ],
        "health": {name: {"state": h.state.value, "reason": h.reason} for name, h in sorted(result.health.items())},
        "notListed": result.unseen,
    }


def _object_data(step: ReconcileStep) -> dict[str, Any]:
    fields = []
    for difference in step.differences:
        old, new = masked_values(difference, step.key.kind)
        entry: dict[str, Any] = {"field": difference.field, "by": difference.by}
        entry |= {word: value for word, value in (("old", old), ("new", new)) if value is not ABSENT}
        fields.append(entry)
    return {
        "action": step.action.value,
        **step.key._asdict(),
        "spec": str(step.wanted.manifest.item) if step.wanted is not None else "",
        "fields": fields,
        "reason": step.reason,
        "error": redact_text(step.error),
        "needsAdministrator": step.lacks_rights,
    }


def as_text(result: StepResult, colour: bool) -> str:
    """Return the report as text."""
    green, yellow, red, dim, off = ("\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m") if colour else ("",) * 5
    tint = {
        Action.create: green,
        Action.change: yellow,
        Action.recreate: yellow,
        Action.restore: yellow,
        Action.prune: red,
    }
    lines = []
    for action, (sign, word) in _ACTION_SIGNS.items():
        steps = [step for step in result.steps if step.action is action and not step.error]
        for step in steps[:_MAX_LINES]:
            lines.append(
                f"  {tint.get(action, '')}{sign}{off} {visible_text(step.title)}{_step_detail(step, dim, off)}"
            )
        if len(steps) > _MAX_LINES:
            lines.append(f"  {sign} … and {len(steps) - _MAX_LINES} more {word}")
    left = [step for step in result.steps if step.action is Action.none and step.reason and not step.error]
    lines += [f"  = {visible_text(step.title)}{_step_detail(step, dim, off)}" for step in left[:_MAX_LINES]]
    if len(left) > _MAX_LINES:
        lines.append(f"  = … and {len(left) - _MAX_LINES} more with fields of others")
    # Causes come before the steps that they block.
    failed = sorted(result.failed, key=lambda step: step.blocked)
    lines += [f"  {red}!{off} {visible_text(step.title)}: {_one_line(step.error)}" for step in failed[:_MAX_LINES]]
    if len(failed) > _MAX_LINES:
        lines.append(f"  {red}!{off} … and {len(failed) - _MAX_LINES} more failed")
    if waiting := sum(step.lacks_rights for step in failed):
        lines.append(f"  {red}!{off} {count_text(waiting, 'object')} for an administrator: {_ADMINISTRATOR_HINT}")
    for name, health in sorted(result.health.items()):
        sign = f"{red}!{off}" if health.state is HealthState.failed else "…"
        lines.append(f"  {sign} {visible_text(name)}: {_one_line(health.reason)}")
    for kind in result.unseen:
        lines.append(f"  {red}!{off} {kind}: no permission to list; removed objects of this kind are not pruned")
    head = f"cluster {result.cluster}" + (f" · context {result.context}" if result.context else "")
    head += f" · commit {result.commit[:12]}" if result.commit else ""
    head += f" · also carries {', '.join(result.carries)}" if result.carries and not result.problem else ""
    if result.dry_run:
        head += " · dry run, nothing was written"
    if result.claimed and not result.problem:
        lines.insert(0, f"  this Kubernetes cluster carries cluster {result.cluster} from now on")
    if result.problem:
        lines.append(f"  {red}!{off} {_one_line(result.problem)}")
    foot = [] if result.problem and not result.steps else [result.summary()]
    return inert_text("\n".join([visible_text(head), *lines, *foot]) + "\n")


def _one_line(text: str) -> str:
    """Return a message on one line of bounded length."""
    return visible_text(redact_text(shorten_middle(text, _MAX_MESSAGE_LENGTH)).replace("\n", "⏎"))


def _step_detail(step: ReconcileStep, dim: str, off: str) -> str:
    parts = []
    for difference in step.differences[:_MAX_FIELDS]:
        old, new = masked_values(difference, step.key.kind)
        if step.action is Action.none:
            old, new = new, old  # declared, and as it stays
        by = f" {dim}(by {visible_text(difference.by)}){off}" if difference.by and step.action is Action.restore else ""
        # Two long texts often share their beginning, so showing it would not help.
        long = any(isinstance(value, str) and ("\n" in value or len(value) > _MAX_VALUE_LENGTH) for value in (old, new))
        how = "changed" if long and old is not ABSENT and new is not ABSENT else f"{_shorten(old)} → {_shorten(new)}"
        parts.append(f"{visible_text(difference.field)} {visible_text(how)}{by}")
    if len(step.differences) > _MAX_FIELDS:
        parts.append(f"{len(step.differences) - _MAX_FIELDS} more")
    text = ", ".join(parts)
    if step.reason:
        text = f"{step.reason}: {text}" if text else step.reason
    return f"  {text}" if text else ""


def _shorten(value: Any) -> str:
    if value is ABSENT:
        return "–"
    if isinstance(value, dict | list):
        return f"{{{len(value)}}}" if isinstance(value, dict) else f"[{len(value)}]"
    text = str(value).replace("\n", "⏎")
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 1]}…"
