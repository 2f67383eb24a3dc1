"""How a run went, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from avactl.diagnostics.secrets import redact
from avactl.reconcile.diffing.actions import Action, Step, shown
from avactl.reconcile.diffing.managed_fields import ABSENT
from avactl.reconcile.health import Health, State
from avactl.terminal import inert, shortened, visible

_MOST_LINES = 40
_MOST_FIELDS = 4
_LONGEST = 2000
"""Characters of what the API server said."""
_LONG = 80
"""Characters of a value; an image with its digest has more."""
_SIGNS = {
    Action.create: ("+", "created"),
    Action.change: ("~", "changed"),
    Action.recreate: ("±", "made anew"),
    Action.restore: ("↺", "put back"),
    Action.prune: ("-", "pruned"),
    Action.keep: ("=", "kept"),
    Action.wait: ("…", "waiting"),
}


@dataclass(slots=True)
class Result:
    """One run."""

    cluster: str
    inventory: str
    commit: str = ""
    steps: list[Step] = field(default_factory=list)
    health: dict[str, Health] = field(default_factory=dict)
    """What is not well in the end, by its title; what is waited for too."""
    problem: str = ""
    """Why nothing was done, or not all."""
    dry_run: bool = False
    unreachable: bool = False
    """Whether the problem is that the cluster does not answer."""
    unseen: list[str] = field(default_factory=list)
    """Kinds that may not be listed."""

    @property
    def failed(self) -> list[Step]:
        """What could not be done."""
        return [step for step in self.steps if step.error]

    @property
    def drift(self) -> list[Step]:
        """What somebody else had changed or deleted."""
        return [step for step in self.steps if step.action is Action.restore]

    @property
    def changed(self) -> bool:
        """Whether anything was written, or would have been."""
        quiet = (Action.none, Action.keep, Action.wait, Action.refuse)
        return any(step.action not in quiet for step in self.steps)

    @property
    def complete(self) -> bool:
        """Whether the cluster holds what git says."""
        return not self.problem and not self.failed

    @property
    def ok(self) -> bool:
        """Whether all is applied and well."""
        unhealthy = any(h.state in (State.failed, State.progressing) for h in self.health.values())
        return self.complete and not unhealthy

    def counts(self) -> dict[str, int]:
        """How many objects went which way."""
        found = Counter("failed" if step.error else _word(step) for step in self.steps)
        order = (*(word for _, word in _SIGNS.values()), "failed", "unchanged")
        return {word: found[word] for word in order if found[word] or word == "unchanged"}

    def summary(self) -> str:
        """`296 objects: 294 created, 2 waiting, 0 unchanged`."""
        counts = ", ".join(f"{count} {word}" for word, count in self.counts().items())
        return f"{len(self.steps)} objects: {counts}"


def _word(step: Step) -> str:
    return _SIGNS[step.action][1] if step.action in _SIGNS else "unchanged"


def as_json(result: Result) -> dict[str, Any]:
    """The report for programs."""
    return {
        "cluster": result.cluster,
        "inventory": result.inventory,
        "commit": result.commit,
        "dryRun": result.dry_run,
        "ok": result.ok,
        "problem": redact(result.problem),
        "counts": result.counts(),
        "objects": [_object(step) for step in result.steps if step.action is not Action.none or step.error],
        "health": {name: {"state": h.state.value, "reason": h.reason} for name, h in sorted(result.health.items())},
        "notListed": result.unseen,
    }


def _object(step: Step) -> dict[str, Any]:
    group, kind, namespace, name = step.key
    fields = []
    for difference in step.differences:
        old, new = shown(difference, kind)
        entry: dict[str, Any] = {"field": difference.field, "by": difference.by}
        entry |= {word: value for word, value in (("old", old), ("new", new)) if value is not ABSENT}
        fields.append(entry)
    return {
        "action": step.action.value,
        "group": group,
        "kind": kind,
        "namespace": namespace,
        "name": name,
        "spec": str(step.wanted.manifest.item) if step.wanted is not None else "",
        "fields": fields,
        "reason": step.reason,
        "error": redact(step.error),
    }


def as_text(result: Result, colour: bool) -> str:
    """The report for people."""
    green, yellow, red, dim, off = ("\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m") if colour else ("",) * 5
    tint = {Action.create: green, Action.change: yellow, Action.recreate: yellow, Action.restore: yellow,
            Action.prune: red}  # fmt: skip
    lines = []
    for action, (sign, word) in _SIGNS.items():
        steps = [step for step in result.steps if step.action is action and not step.error]
        for step in steps[:_MOST_LINES]:
            lines.append(f"  {tint.get(action, '')}{sign}{off} {visible(step.title)}{_detail(step, dim, off)}")
        if len(steps) > _MOST_LINES:
            lines.append(f"  {sign} … and {len(steps) - _MOST_LINES} more {word}")
    # Causes come before the steps that they block.
    failed = sorted(result.failed, key=lambda step: step.blocked)
    lines += [f"  {red}!{off} {visible(step.title)}: {_said(step.error)}" for step in failed[:_MOST_LINES]]
    if len(failed) > _MOST_LINES:
        lines.append(f"  {red}!{off} … and {len(failed) - _MOST_LINES} more failed")
    for name, health in sorted(result.health.items()):
        sign = f"{red}!{off}" if health.state is State.failed else "…"
        lines.append(f"  {sign} {visible(name)}: {_said(health.reason)}")
    for kind in result.unseen:
        lines.append(f"  {red}!{off} {kind}: may not be listed; what left git of this kind is not pruned")
    head = f"cluster {result.cluster}" + (f" · commit {result.commit[:12]}" if result.commit else "")
    if result.dry_run:
        head += " · dry run, nothing is written"
    if result.problem:
        lines.append(f"  {red}!{off} {_said(result.problem)}")
    foot = [] if result.problem and not result.steps else [result.summary()]
    return inert("\n".join([visible(head), *lines, *foot]) + "\n")


def _said(text: str) -> str:
    """What the API server and others said, on one line of a bounded length."""
    return visible(redact(shortened(text, _LONGEST)).replace("\n", "⏎"))


def _detail(step: Step, dim: str, off: str) -> str:
    parts = []
    for difference in step.differences[:_MOST_FIELDS]:
        old, new = shown(difference, step.key.kind)
        by = f" {dim}(by {visible(difference.by)}){off}" if difference.by and step.action is Action.restore else ""
        # Of long texts the beginning would be the same on both sides.
        long = any(isinstance(value, str) and ("\n" in value or len(value) > _LONG) for value in (old, new))
        how = "changed" if long and old is not ABSENT and new is not ABSENT else f"{_short(old)} → {_short(new)}"
        parts.append(f"{visible(difference.field)} {visible(how)}{by}")
    if len(step.differences) > _MOST_FIELDS:
        parts.append(f"{len(step.differences) - _MOST_FIELDS} more")
    text = ", ".join(parts)
    if step.reason:
        text = f"{step.reason}: {text}" if text else step.reason
    return f"  {text}" if text else ""


def _short(value: Any) -> str:
    if value is ABSENT:
        return "–"
    if isinstance(value, dict | list):
        return f"{{{len(value)}}}" if isinstance(value, dict) else f"[{len(value)}]"
    text = str(value).replace("\n", "⏎")
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"
