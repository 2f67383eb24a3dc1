"""Lists the policies of a repository, for `avactl explain policies`."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.compiler.config import load_config, rules_of
from avactl.compiler.policies.evaluation import read
from avactl.policy.settings import Ready, Rules, RuleSetting
from avactl.spec.python_files.load import laid_out
from avactl.spec.repository.tree import Tree

_OFF_STATE = "off"


def policies_text(tree: Tree) -> str:
    """Return the built-in policies and the repository's own, and whether each is enabled."""
    config, _ = load_config(tree)
    lines = ["Policies: additional requirements on specs (docs/policies.md)", ""]
    lines.append("Built-in, enabled in avactl.yaml: `policies: {NAME: error}` or `warning`")
    lines += _format_table(_ready_made_rows(config.policies))
    rules = rules_of(config, tree.paths())
    if rules is not None and rules.files:
        lines += ["", "Repository policies, in policies/", *_format_table(_own_rows(rules, tree))]
    return "\n".join(lines) + "\n"


def _format_table(rows: Iterator[tuple[str, str, str]]) -> list[str]:
    found = list(rows)
    name = max((len(row[0]) for row in found), default=0)
    state = max((len(row[1]) for row in found), default=0)
    return [f"  {row[0]:<{name}}  {row[1]:<{state}}  {row[2]}" for row in found]


def _ready_made_rows(ready: Ready) -> Iterator[tuple[str, str, str]]:
    for field, info in type(ready).model_fields.items():
        switch = getattr(ready, field)
        state = _OFF_STATE if switch is None else switch.severity if isinstance(switch, RuleSetting) else switch
        yield info.alias or field, state, info.description or ""


def _own_rows(rules: Rules, tree: Tree) -> Iterator[tuple[str, str, str]]:
    from avactl.policy import custom

    sources, problems = read(rules, tree)
    with custom.Subjects([], []) as subjects:
        reports = custom.run(sources, laid_out(tree), subjects, rules.timeout)
    for report in reports:
        for policy in report.declared:
            over = " ".join(policy["kinds"]) or f"all {policy['over']}"
            what = f"{over}: {policy['help']}" if policy["help"] else over
            yield policy["name"], policy["severity"], f"{what}   ({policy['span'].file}:{policy['span'].line})"
        problems += report.problems
    for problem in problems:
        yield "?", problem.severity, f"{problem.message}   ({problem.span.file}:{problem.span.line})"
