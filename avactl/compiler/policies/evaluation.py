"""Pass 8: enforce policies, both the repository's own and the enabled built-in ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_origin

from pydantic import BaseModel, ValidationError

from avactl.base.terminal import shorten_middle
from avactl.compiler.errors import format_path, to_diagnostics
from avactl.compiler.lint.remedies import describe_value
from avactl.compiler.pass_state import PassState
from avactl.compiler.selection import is_policy
from avactl.diagnostics import Diagnostic, Span
from avactl.diagnostics.suggest import closest_word, did_you_mean
from avactl.policy import Problem
from avactl.policy.settings import Ready, Rules, SchemaFile
from avactl.program import registry
from avactl.program.explain import introspect
from avactl.program.manifest import Manifest
from avactl.program.program import Item
from avactl.spec.documents.document import Document, Path, nested_strings
from avactl.spec.documents.yaml import MAX_BYTES, load_yaml, too_large
from avactl.spec.repository.tree import Tree

if TYPE_CHECKING:
    from avactl.policy import custom

Judged = tuple[Item | None, Diagnostic]
"""A problem and the affected spec; None if the policy itself is invalid."""


def enforce(state: PassState) -> PassState:
    """Return the state with all policy violations, and without objects if one is an error."""
    if state.rules is None or state.program is None or state.failed:
        return state
    problems = tuple(
        problem for _, problem in judge_specs(state.rules, state.tree, state.program.items, state.manifests)
    )
    manifests = () if any(problem.severity == "error" for problem in problems) else state.manifests
    return replace(state, diagnostics=state.diagnostics + problems, manifests=manifests)


def judge_specs(rules: Rules, tree: Tree, items: Iterable[Item], manifests: Sequence[Manifest]) -> list[Judged]:
    """Check specs and their objects against the policies."""
    mine = [item for item in items if not item.doc.shipped]
    found = list(_judge_ready_made(rules.ready, mine, manifests)) if rules.ready.model_fields_set else []
    if rules.files:
        found += _judge_own(rules, tree, mine, manifests)
    return found


# -- ready-made ------------------------------------------------------------------------------------------------------


def _judge_ready_made(ready: Ready, items: Sequence[Item], manifests: Sequence[Manifest]) -> Iterator[Judged]:
    from avactl.policy.builtin import HELP, active_policies

    for policy in active_policies(ready):
        exempt = frozenset(policy.rule.exempt)
        hint = HELP.get(policy.name, "")
        if policy.over_spec:
            for item in items:
                if _spec_label(item) not in exempt:
                    for problem in policy.over_spec(item, policy.rule):
                        yield item, _of_spec(policy.name, policy.rule.severity, item, problem, hint)
        if policy.over_manifest:
            of: dict[Item, list[tuple[Manifest, Problem]]] = {}
            for manifest in manifests:
                if _spec_label(manifest.item) not in exempt:
                    for problem in policy.over_manifest(manifest, policy.rule):
                        of.setdefault(manifest.item, []).append((manifest, problem))
            for item, problems in of.items():
                # One of a spec: its objects mostly have one thing in common.
                manifest, problem = problems[0]
                if len(problems) > 1:
                    problem = problem._replace(message=f"{problem.message}, and {len(problems) - 1} more like it")
                yield item, _of_manifest(policy.name, policy.rule.severity, manifest, problem, hint)


def _spec_label(item: Item) -> str:
    return f"{item.team}/{item.spec_name}" if item.team else item.spec_name


# -- where a problem stands ------------------------------------------------------------------------------------------


def _of_spec(name: str, severity: str, item: Item, problem: Problem, hint: str = "") -> Diagnostic:
    whole = not problem.path or isinstance(item.doc.get(*problem.path), dict | list)
    path: Path = problem.path or ("metadata", "name")
    span = item.span(*path, key=whole and bool(problem.path))
    return _make_diagnostic(name, severity, problem.message, span, problem.help or hint)


def _of_manifest(name: str, severity: str, manifest: Manifest, problem: Problem, hint: str = "") -> Diagnostic:
    where = f"{manifest.id}: {format_path(problem.path)}" if problem.path else str(manifest.id)
    span = _value_origin(manifest, problem.path)
    return _make_diagnostic(name, severity, f"{problem.message} ({where})", span, problem.help or hint)


def _value_origin(manifest: Manifest, path: Path) -> Span:
    """The place in the spec that a value of an object came from: where the same text stands, if only there."""
    value: object = manifest.body
    for step in path:
        try:
            value = value[step]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            break
    if isinstance(value, str) and len(value) > 2:
        same = [at for at, text, is_key in nested_strings(manifest.item.doc.value) if text == value and not is_key]
        if len(same) == 1:
            return manifest.item.span(*same[0])
    return manifest.item.span("metadata", "name")


def _make_diagnostic(name: str, severity: str, message: str, span: Span, hint: str) -> Diagnostic:
    return Diagnostic("policy", message, span, "warning" if severity == "warning" else "error", hint=hint, rule=name)


# -- the repository's own --------------------------------------------------------------------------------------------


def _judge_own(rules: Rules, tree: Tree, items: Sequence[Item], manifests: Sequence[Manifest]) -> list[Judged]:
    from avactl.policy import custom
    from avactl.spec.python_files.load import laid_out

    sources, problems = read(rules, tree)
    found: list[Judged] = [(None, problem) for problem in problems]
    if not sources:
        return found
    inside = [(outer, inner) for outer in items for inner in registry.get_kind(outer.kind).inner(outer)]
    outer_of = {inner: outer for outer, inner in inside}
    with custom.Subjects([*items, *outer_of], manifests) as subjects:
        reports = custom.run(sources, laid_out(tree), subjects, rules.timeout)
    for report in reports:
        found += [(None, problem) for problem in report.problems]
        found += [(None, problem) for problem in _unknown_kinds(report)]
        for policy, severity, subject, problem in report.findings:
            if isinstance(subject, Manifest):
                found.append((subject.item, _of_manifest(policy, severity, subject, problem)))
            else:
                found.append((outer_of.get(subject, subject), _of_spec(policy, severity, subject, problem)))
    return [*found, *((None, problem) for problem in _same_names(reports))]


def read(rules: Rules, tree: Tree) -> tuple[list[custom.PolicySource], list[Diagnostic]]:
    """Return the repository's own policies, and problems of files that contain none."""
    from avactl.policy.custom import PolicySource

    sources: list[PolicySource] = []
    problems: list[Diagnostic] = []
    for path in rules.files:
        try:
            size = tree.size(path)
            data = tree.read(path) if size <= MAX_BYTES else b""
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            problems.append(Diagnostic("file-unreadable", message, Span(path), hint="check its permissions", rule=path))
            continue
        if size > MAX_BYTES:
            problems.append(too_large(path, size))
        elif not path.endswith(".py"):
            documents, wrong = load_yaml(path, data)
            problems += [problem for problem in wrong if problem.code != "empty-file"]
            for document in documents:
                schema = _read_schema(document, problems)
                if schema:
                    sources.append(PolicySource(path, schema, document))
        elif not is_policy(data):
            continue  # a helper module
        elif rules.python:
            sources.append(PolicySource(path))
        else:
            hint = "set `python: {allow: true}` in avactl.yaml, or write the policy as JSON Schema"
            message = "Python policies are not allowed here"
            problems.append(Diagnostic("python-not-allowed", message, Span(path), hint=hint, rule=path))
    return sources, problems


def _read_schema(document: Document, problems: list[Diagnostic]) -> SchemaFile | None:
    value = document.value
    if not isinstance(value, dict) or ("policy" not in value and "kind" in value):
        what = (
            "a spec in a directory for policies"
            if isinstance(value, dict)
            else f"{describe_value(value)}, not a policy"
        )
        hint = "write `policy: NAME` and `schema: {…}`; keep specs in another directory"
        problems.append(Diagnostic("policy-error", f"this is {what}", document.span(), hint=hint, rule=document.file))
        return None
    try:
        found = SchemaFile.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        problems += to_diagnostics(SchemaFile, document, error)
        return None
    if found.over == "specs":
        kinds = found.kinds or registry.kind_names()
        models = [registry.get_model(kind) for kind in kinds if kind in registry.kind_names()]
        problems += _unknown_properties(document, found.policy, found.schema_, ("schema",), models, True)
    return found


_TOP_LEVEL_PROPERTIES = frozenset(("apiVersion", "kind", "file"))
_SUBSCHEMAS = ("not", "if", "then", "else", "contains", "allOf", "anyOf", "oneOf")
"""Keywords whose schemas apply to the same value, or to its entries."""


def _unknown_properties(
    document: Document, name: str, schema: Any, path: Path, models: Sequence[Any], top: bool
) -> Iterator[Diagnostic]:
    """Yield properties that no spec of the policy's kinds has; `top`: the schema judges whole specs."""
    if isinstance(schema, list):
        for index, each in enumerate(schema):
            yield from _unknown_properties(document, name, each, (*path, index), models, top)
    if not isinstance(schema, dict) or not models:
        return
    for keyword in _SUBSCHEMAS:
        yield from _unknown_properties(document, name, schema.get(keyword), (*path, keyword), models, top)
    if isinstance(schema.get("items"), dict):
        yield from _unknown_properties(document, name, schema["items"], (*path, "items"), models, False)
    properties = schema.get("properties")
    known = {key for model in models for key in introspect.fields_by_key(model)}
    for key, inner in properties.items() if isinstance(properties, dict) else ():
        place = (*path, "properties", str(key))
        if key in known and any(_is_map_at(model, key) for model in models):
            continue  # its keys are the author's
        if key in known:
            below = [each for model in models for at in ((key,), (key, 0)) for each in introspect.models_at(model, at)]
            yield from _unknown_properties(document, name, inner, place, below, False)
        elif not top or key not in _TOP_LEVEL_PROPERTIES:
            message = f"policy {name}: no spec that it checks has `{shorten_middle(str(key), 60)}` here"
            hint = did_you_mean(str(key), known, "keys")
            yield Diagnostic("policy-error", message, document.span(*place, key=True), hint=hint, rule=name)


def _is_map_at(model: type[BaseModel], key: str) -> bool:
    """Return True if a field, or an entry of its list, may be a mapping with any keys."""
    places = (annotation for at in ((key,), (key, 0)) for annotation in introspect.annotations_at(model, at))
    return any((get_origin(each) or each) is dict for place in places for each in introspect.branches(place))


def _unknown_kinds(report: custom.PolicyReport) -> Iterator[Diagnostic]:
    """Yield policies for unknown kinds of specs, which would never apply."""
    known = registry.kind_names()
    for policy in report.declared:
        for kind in policy["kinds"]:
            if policy["over"] == "manifests" and kind in known:
                hint = "use Kubernetes kinds such as `Job`, or `over: specs`"
                message = f"policy {policy['name']}: `{kind}` is a spec kind, but the policy checks manifests"
                yield Diagnostic("policy-error", message, policy["span"], hint=hint, rule=policy["name"])
            if policy["over"] == "specs" and kind not in known:
                near = closest_word(str(kind), known)
                hint = f"did you mean `{near}`?" if near else "to check Kubernetes kinds, use `over: manifests`"
                message = f"policy {policy['name']}: unknown spec kind `{kind}`"
                yield Diagnostic("policy-error", message, policy["span"], hint=hint, rule=policy["name"])


def _same_names(reports: Iterable[custom.PolicyReport]) -> Iterator[Diagnostic]:
    seen: dict[str, Span] = {}
    for report in reports:
        for policy in report.declared:
            first = seen.setdefault(policy["name"], policy["span"])
            if first is not policy["span"]:
                message = f"duplicate policy name {policy['name']}; first declared at {first}"
                yield Diagnostic("policy-error", message, policy["span"], hint="rename one", rule=policy["name"])
