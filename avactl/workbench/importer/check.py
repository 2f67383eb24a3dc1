"""Make the specs compile: what the compiler refuses is taken out and recorded, or the object stays a manifest."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from avactl.compiler import Compilation, compile_tree
from avactl.diagnostics import Diagnostic
from avactl.spec.documents.document import Document, Path
from avactl.spec.documents.yaml import load_yaml
from avactl.spec.repository.tree import Tree
from avactl.workbench.importer.convert import Converted, as_manifest, mend_manifest, mends_of
from avactl.workbench.importer.machines import unused_machines
from avactl.workbench.importer.model import (
    Body,
    GivenValue,
    ImportedSpec,
    ImportOutcome,
    ImportProblem,
    ImportResult,
    Loss,
    key_path,
    spec_name,
)
from avactl.workbench.importer.slurm.script import KIND
from avactl.workbench.importer.writing import spec_yaml

Texts = dict[str, bytes]
"""Files of specs, by their content."""
_SHARED_KINDS = ("Cluster", "MachineType", "NodePool", "Team", "Quota")
"""Kinds that other specs need to compile."""
_MAX_ROUNDS = 40
"""Compilations of one import at most; each takes out every value that the one before refused."""
_MAX_SMALL_ROUNDS = 1000
"""Compilations of a part of the specs at most."""
_OPTIONAL_KEYS = (
    "pod",
    "env",
    "sharedMemory",
    "timeout",
    "ttl",
    "retries",
    "probe",
    "drain",
    "maxSurge",
    "args",
    "members",
    "labels",
    "gpus",
    "borrow",
    "podMaxCpu",
    "podMaxMemory",
    "storage",
    "pods",
    "namespaces",
    "serviceAccounts",
    "pullSecrets",
    "taints",
    "rdmaResource",
    "rdma",
    "pool",
    "slotsPerWorker",
)
"""Keys of a spec that can be taken out."""
_ROLE_KEYS = ("workers", "servers", "launcher", "evaluator", "resources")


class ImportedFiles:
    """A tree with further files."""

    def __init__(self, below: Tree, files: Mapping[str, bytes]) -> None:
        self._below, self._files = below, files
        self.environment = below.environment

    @property
    def skipped(self) -> Mapping[str, str]:
        return self._below.skipped

    def paths(self) -> list[str]:
        return sorted({*self._below.paths(), *self._files})

    def size(self, path: str) -> int:
        return len(self._files[path]) if path in self._files else self._below.size(path)

    def read(self, path: str) -> bytes:
        return self._files[path] if path in self._files else self._below.read(path)


@dataclass
class Checked:
    """Specs that compile, and the result of it."""

    converted: Converted
    compilation: Compilation
    files: dict[str, bytes]


def choose_files(specs: list[ImportedSpec], prefix: str) -> None:
    """Choose the file of each spec: one per spec, by team or namespace."""
    taken: set[str] = set()
    for spec in specs:
        if spec.kind in ("Cluster", "NodePool", "MachineType"):
            folder, name = "clusters", f"{spec.kind.lower()}-{spec.name}" if spec.kind != "Cluster" else spec.name
        elif spec.kind in ("Team", "Quota"):
            folder, name = f"teams/{spec.team or spec.name}", spec.kind.lower()
        elif spec.team:
            folder, name = f"teams/{spec.team}", spec.name
        else:
            given = spec.given[0]
            folder = f"objects/{given.namespace or 'cluster'}"
            name = spec_name(f"{given.kind}-{given.name}", 80)
        file = base = f"{prefix}{folder}/{name}"
        count = 1
        while f"{file}.yaml" in taken:
            count += 1
            file = f"{base}-{count}"
        taken.add(f"{file}.yaml")
        spec.file = f"{file}.yaml"


def check(converted: Converted, below: Tree, prefix: str) -> Checked:
    """Return specs that compile within the repository `below`. Raises ImportProblem.

    `prefix`: directory of the new files in the repository, with a slash at its end.
    """
    texts: Texts = {}
    for _ in range(_MAX_ROUNDS):
        choose_files(converted.specs, prefix)
        files = {spec.file: _spec_text(spec, texts) for spec in converted.specs}
        compilation = compile_tree(ImportedFiles(below, files))
        errors = [each for each in compilation.diagnostics if each.severity == "error"]
        if not errors:
            superfluous = unused_machines(converted.specs)
            if superfluous:
                converted.specs[:] = [each for each in converted.specs if each not in superfluous]
                continue
            _want_read(compilation, files, prefix)
            return _join_patches(Checked(converted, compilation, files), below, texts)
        wrong = {each.span.file for each in errors}
        # What exceeds a quota is reported one by one: each of the team's specs may be the next.
        exceeding = {each.span.file for each in errors if each.code == "quota-exceeded"}
        crowded = {spec.team for spec in converted.specs if spec.file in exceeding}
        fine = {id(spec) for spec in converted.specs if spec.file not in wrong and (spec.team or "") not in crowded}
        _repair_all(converted, errors, files)
        _repair_few(converted, below, prefix, fine, texts)
    raise ImportProblem("the specs do not compile", "please report it, with the manifests; `--as-is` keeps all objects")


def _spec_text(spec: ImportedSpec, texts: Texts) -> bytes:
    """Return the file of a spec, written once for each of its states."""
    body = spec.body()
    key = repr((body, spec.comments))
    found = texts.get(key)
    if found is None:
        found = texts[key] = spec_yaml(body, spec.comments).encode()
    return found


def _repair_few(converted: Converted, below: Tree, prefix: str, fine: Collection[int], texts: Texts) -> None:
    """Repair specs until they compile, beside what all specs need, but without those that are `fine` (by `id`).

    A repair shows the next problem of the same spec: compiling thousands of others each time would take minutes.
    """
    for _ in range(_MAX_SMALL_ROUNDS):
        choose_files(converted.specs, prefix)
        part = [spec for spec in converted.specs if spec.kind in _SHARED_KINDS or id(spec) not in fine]
        files = {spec.file: _spec_text(spec, texts) for spec in part}
        errors = [each for each in compile_tree(ImportedFiles(below, files)).diagnostics if each.severity == "error"]
        own = [each for each in errors if each.span.file in files]
        if not own:
            return
        _repair_all(converted, own, files)


def _repair_all(converted: Converted, errors: list[Diagnostic], files: Mapping[str, bytes]) -> None:
    """Repair the last problem of each spec. Raises ImportProblem if all are in files of the repository."""
    by_file = {spec.file: spec for spec in converted.specs}
    own = [each for each in errors if each.span.file in by_file]
    if not own:
        told = f"{errors[0].span}: {errors[0].message}"
        raise ImportProblem(f"the repository does not compile: {told}", "`avactl validate` shows its problems")
    seen: set[str] = set()
    for problem in sorted(own, key=lambda each: each.span, reverse=True):
        # Positions behind a removed value have moved, so each file is changed once a round.
        if by_file[problem.span.file] not in converted.specs:
            continue  # it went with its team
        if problem.span.file not in seen or problem.code == "credential-literal":
            seen.add(problem.span.file)
            _repair_spec(converted, by_file[problem.span.file], problem, files)


def _join_patches(checked: Checked, below: Tree, texts: Texts) -> Checked:
    """Return the specs with one patch for each target, if they still compile."""
    specs = checked.converted.specs
    before = [spec.patches for spec in specs]
    for spec in specs:
        made: list[Body] = []
        for patch in spec.patches:
            same = next((each for each in made if each["target"] == patch["target"]), None)
            if same is None:
                made.append(copy.deepcopy(patch))
            else:
                _join(same["merge"], patch["merge"])
        spec.patches = made
    files = {spec.file: _spec_text(spec, texts) for spec in specs}
    if files == checked.files:
        return checked
    compilation = compile_tree(ImportedFiles(below, files))
    if compilation.ok:
        return Checked(checked.converted, compilation, files)
    for spec, patches in zip(specs, before, strict=True):
        spec.patches = patches
    return checked


def _join(one: Body, other: Body) -> None:
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(one.get(key), dict):
            _join(one[key], value)
        elif key in ("containers", "initContainers") and one.get(key):
            _join(one[key][0], value[0])
        else:
            one[key] = value


def _want_read(compilation: Compilation, files: Mapping[str, bytes], prefix: str) -> None:
    read = {item.doc.file for item in compilation.program.items}
    unread = sorted(set(files) - read)
    if unread:
        raise ImportProblem(
            f"{unread[0]} is not in `include` of avactl.yaml",
            f"add `{prefix.rstrip('/') or unread[0]}`, or choose another directory with `-o`",
        )


def _repair_spec(converted: Converted, spec: ImportedSpec, problem: Diagnostic, files: Mapping[str, bytes]) -> None:
    documents, _ = load_yaml(spec.file, files[spec.file])
    path = _deepest_path(documents[0], problem) if documents else ()
    if spec.raw:
        _repair_manifest(converted, spec, problem, path)
        return
    cut = _removable_path(spec, path)
    if cut is None:
        _keep_manifests(converted, spec, problem)
        return
    found = spec.origin(cut)
    if found is not None and problem.code != "patch-without-effect":
        given, at = found
        message = re.sub(r"^spec\.\S+: ", "", problem.message)
        span = given.span(*at, key=bool(at) and isinstance(at[-1], str))
        spec.losses.append(Loss(span, str(given), key_path(at), message, problem.hint))
        for outcome in converted.outcomes:
            if outcome.given is given and outcome.result is ImportResult.carried:
                outcome.result = ImportResult.approximated
    spec.remove(cut)


def _deepest_path(document: Document, problem: Diagnostic) -> Path:
    """Return the deepest path of the document whose value or key is at the problem."""
    best: Path = ()
    for path in _nested_paths(document.value, ()):
        for key in (False, True):
            span = document.span(*path, key=key)
            if (span.line, span.column) == (problem.span.line, problem.span.column) and len(path) >= len(best):
                best = path
    return best


def _nested_paths(value: Any, path: Path) -> Iterator[Path]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _nested_paths(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _nested_paths(inner, (*path, index))


def _removable_path(spec: ImportedSpec, path: Path) -> Path | None:
    """Return the part of a spec that can go so that the problem at a path does; None if there is none."""
    if path[:1] == ("patches",) and len(path) > 1:
        return path[:2]
    if path[:1] != ("spec",) or len(path) < 2:
        return None
    keys = path[1:]
    base: Path = ("spec",)
    if keys[0] in _ROLE_KEYS and len(keys) > 1:
        base, keys = (*base, keys[0]), keys[1:]
    if keys[0] not in _OPTIONAL_KEYS or (keys[0] == "gpus" and spec.kind != "Quota"):
        return None
    if keys[0] == "pod" and keys[1:2] in (("sidecars",), ("initContainers",)):
        return None  # without one of its containers, it is another program
    # One entry of `pod`'s lists and mappings, otherwise the whole key.
    depth = {"pod": 3, "env": 2}.get(str(keys[0]), 2 if isinstance(spec.spec.get(str(keys[0])), list) else 1)
    return (*base, *keys[:depth])


def _keep_manifests(converted: Converted, spec: ImportedSpec, problem: Diagnostic) -> None:
    """Replace a spec by the manifests that it was made of."""
    if spec.kind in ("MachineType", "NodePool"):
        both = [each for each in converted.specs if each.kind in ("MachineType", "NodePool") and each.name == spec.name]
        for each in both:
            converted.specs.remove(each)
            for node in each.given:
                _record_left(converted, node, problem.message)
        return
    if spec.kind == "Team" and not spec.given:
        # Its namespace can be no team's, so it has no specs of other kinds.
        converted.specs.remove(spec)
        for each in [each for each in converted.specs if each.team == spec.name]:
            _keep_manifests(converted, each, problem)
        return
    if not spec.given:
        raise ImportProblem(f"{spec}: {problem.message}", problem.hint)
    converted.specs.remove(spec)
    remedy = f" ({problem.hint})" if problem.hint else ""
    mends = mends_of(converted.specs)
    for given in mends_of([spec]):
        found = next((each for each in converted.specs if each.raw and each.given[0] is given), None)
        if found is not None:  # what it refers to stays as it was
            converted.specs.remove(found)
            made = as_manifest(given)
            how = ImportResult.approximated if mend_manifest(made, mends.get(given, ())) else ImportResult.raw
            converted.specs.append(made)
            _set(converted, ImportOutcome(given, how, made))
    for given in dict.fromkeys(spec.given):
        if given.kind in ("Node", KIND):
            _record_left(converted, given, f"{problem.message}{remedy}")
            continue
        made = as_manifest(given)
        converted.specs.append(made)
        _set(converted, ImportOutcome(given, ImportResult.raw, made, f"{problem.message}{remedy}"))


def _set(converted: Converted, outcome: ImportOutcome) -> None:
    converted.outcomes[:] = [each for each in converted.outcomes if each.given is not outcome.given] + [outcome]


def _record_left(converted: Converted, given: GivenValue, note: str) -> None:
    _set(converted, ImportOutcome(given, ImportResult.left_out, note=note))


def _repair_manifest(converted: Converted, spec: ImportedSpec, problem: Diagnostic, path: Path) -> None:
    given = spec.given[0]
    at = path[3:]  # below spec.objects[0]
    if problem.code == "credential-literal" and given.kind != "Secret" and _to_secret(converted, spec, given, at):
        return
    converted.specs.remove(spec)
    remedy = f" ({problem.hint})" if problem.hint else ""
    _record_left(converted, given, f"{problem.message}{remedy}")


def _to_secret(converted: Converted, spec: ImportedSpec, given: GivenValue, at: Path) -> bool:
    """Read a variable that looks like a credential from a Secret, or take it out of a ConfigMap."""
    body: Body = spec.spec["objects"][0]
    parent: Any = body
    for step in at[:-1]:
        parent = parent[step]
    if not at or not isinstance(parent, dict):
        return False
    if at[0] == "data" and given.kind == "ConfigMap":
        del parent[at[-1]]
        why, remedy = "the value looks like a credential", "put it into a Secret, and let the pods read it from there"
    elif at[-1] == "value" and isinstance(parent.get("name"), str):
        secret = spec_name(f"{given.name}-env")
        del parent["value"]
        parent["valueFrom"] = {"secretKeyRef": {"name": secret, "key": parent["name"]}}
        why = f"the value looks like a credential; the object reads it from Secret `{secret}`, key `{parent['name']}`"
        remedy = "create that Secret: `avactl secrets` prints the command"
    else:
        return False
    spec.losses.append(Loss(given.span(*at), str(given), key_path(at), why, remedy))
    for index, outcome in enumerate(converted.outcomes):
        if outcome.given is given:
            converted.outcomes[index] = replace(outcome, result=ImportResult.approximated)
    return True
