"""Runs policies in a sandboxed process (`avactl.spec.python_files.sandbox_runner`).

Findings are written as they occur, one line of JSON each, so that a timeout can be attributed to a policy.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from avactl.policy import DECLARED, MAX_PROBLEMS, Policy, Problem
from avactl.spec.python_files import traces
from avactl.spec.python_files.calls import instruction_place
from avactl.spec.python_files.sandbox import enter

_MODULE_NAME = "avactl_policies"

Subject = tuple[str, str]
"""Kind of a spec or an object, and its JSON: each policy gets its own copy."""


def main(request: dict[str, Any]) -> None:
    """Run the child's main program.

    `path` names the file; or `schema` is a JSON Schema, with the policy's name and scope in `policy`. `subjects` is
    the file with the specs or objects to check.
    """
    import os

    schema = request.get("schema")
    if schema is not None:
        with suppress(ImportError):  # reported below
            import jsonschema  # noqa: F401 - before the door closes

    os.environ.clear()
    os.chdir(request["root"])
    enter(request)
    root = request["root"].rstrip("/") + "/"
    with open(request["answer"], "wb", buffering=0) as out:  # noqa: PTH123 - a descriptor
        try:
            if schema is None:
                traces.execute_file(root, request["path"], request["import"], _MODULE_NAME)
                policies = list(DECLARED)
            else:
                policies = [_schema_policy(schema, **request["policy"])]
        except BaseException as error:
            about = traces.describe(root, error, request["path"])
            if hasattr(error, "absolute_path"):  # jsonschema's error: the last line of its text is part of the schema
                about |= {"message": getattr(error, "message", ""), "path": list(error.absolute_path)}
            _write_answer(out, "broken", about)
            return
        for policy in policies:
            _write_answer(out, "policy", {**policy._asdict(), "check": _policy_place(root, policy)})
        with open(request["subjects"], "rb") as file:  # noqa: PTH123
            subjects = json.load(file)
        for index, policy in enumerate(policies):
            _write_answer(out, "begins", index)
            _run(out, root, policy, index, subjects[policy.over])
        _write_answer(out, "ends", None)


def _write_answer(out: BinaryIO, what: str, value: Any) -> None:
    out.write(json.dumps([what, value], default=str, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _policy_place(root: str, policy: Policy) -> list[Any]:
    """Return the location of a policy's function; [] if it has no code of its own."""
    code = getattr(policy.check, "__code__", None)
    if code is None or not code.co_filename.startswith(root):
        return []
    return list(instruction_place(root, code, 0))


def _check_keywords(form: Any, schema: Any) -> None:
    """Raise _SchemaError for a keyword that the schema's dialect does not have: validators ignore it in silence.

    Keywords that begin with `x-` are annotations, as in OpenAPI.
    """
    from referencing.jsonschema import specification_with

    specification = specification_with(form.META_SCHEMA["$schema"])
    known = _dialect_keywords(form)
    places = {id(value): path for path, value in _find_mappings(schema)}
    left = [schema]
    while left:
        current = left.pop()
        for key in current if isinstance(current, dict) else ():
            if key not in known and not key.startswith("x-"):
                near = difflib.get_close_matches(key, known, 1)
                meant = f": did you mean `{near[0]}`?" if near else ""
                raise _SchemaError(f"`{key}` is no keyword of JSON Schema{meant}", (*places[id(current)], key))
        left += specification.subresources_of(current)


def _dialect_keywords(form: Any) -> set[str]:
    """Return the keywords of a dialect: of its metaschema, and of the vocabularies that this one consists of."""
    import jsonschema_specifications

    resolver = jsonschema_specifications.REGISTRY.resolver_with_root(
        jsonschema_specifications.REGISTRY[form.META_SCHEMA.get("$id") or form.META_SCHEMA["id"]]
    )
    parts = [form.META_SCHEMA, *(resolver.lookup(part["$ref"]).contents for part in form.META_SCHEMA.get("allOf", ()))]
    return {key for part in parts for key in part["properties"]} | set(form.VALIDATORS)


def _find_mappings(schema: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield all mappings in a schema, with their locations."""
    if isinstance(schema, dict):
        yield path, schema
    inner = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    for key, value in inner:
        yield from _find_mappings(value, (*path, key))


def _schema_policy(schema: Any, **declared: Any) -> Policy:
    """Convert a JSON Schema to a policy. Raises jsonschema's SchemaError."""
    import jsonschema
    from referencing import Registry

    form = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    form.check_schema(schema)
    _check_keywords(form, schema)
    over = declared["over"]
    # An empty registry: `$ref`s resolve within the schema, and nothing is fetched.
    validator = form(schema, registry=Registry())

    def check(value: dict[str, Any]) -> Iterator[Problem]:
        for error in _schema_errors(validator, value):
            path = tuple(error.absolute_path)
            where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
            # For an object, the path is appended.
            yield Problem(f"{where}: {_error_text(error)}" if where and over == "specs" else _error_text(error), path)

    return Policy(check=check, **declared)


class _SchemaError(ValueError):
    """Error in a schema that only shows when it is applied."""

    def __init__(self, message: str, path: Sequence[str | int] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.absolute_path = path


def _schema_errors(validator: Any, value: dict[str, Any]) -> Iterator[Any]:
    """Yield a schema's findings. Raises _SchemaError if one of its `$ref`s does not resolve."""
    from referencing.exceptions import Unresolvable

    try:
        yield from validator.iter_errors(value)
    except Unresolvable as error:
        # For a reference within the schema, the library quotes the part after `#`, and then the whole schema.
        named = str(error).partition(" does not exist within ")[0].rstrip("'")
        refs = [(path, ref) for path, ref in _find_refs(validator.schema) if named.endswith(ref.removeprefix("#"))]
        path, ref = refs[0] if refs else ((), str(error.ref))
        why = "does not resolve within the schema"
        if not ref.startswith("#"):
            why = "refers to another document, which is never fetched: copy the definition into `$defs`"
        raise _SchemaError(f"`$ref: {ref}` {why}", path) from None
    except RecursionError:
        raise _SchemaError("a `$ref` in it is infinitely recursive") from None


def _find_refs(schema: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield all references in a schema, with their locations."""
    inner = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    for key, value in inner:
        if key == "$ref" and isinstance(value, str):
            yield (*path, key), value
        else:
            yield from _find_refs(value, (*path, key))


def _error_text(error: Any) -> str:
    """Return the message of a schema error. For a large value, quote the expectation instead of the value."""
    message = str(error.message)
    if len(message) > 200:
        message = f"does not match `{error.validator}`: {json.dumps(error.validator_value)[:200]}"
    return message


def _run(out: BinaryIO, root: str, policy: Policy, index: int, subjects: Sequence[Subject]) -> None:
    """Apply one policy to all of its subjects. An exception ends it and is reported once."""
    found = 0
    kinds = frozenset(policy.kinds)
    for number, (kind, text) in enumerate(subjects):
        if kinds and kind not in kinds:
            continue
        try:
            for message, path, help in _policy_problems(policy.check, json.loads(text)):
                found += 1
                if found <= MAX_PROBLEMS:
                    _write_answer(out, "problem", [index, number, message, path, help])
        except BaseException as error:
            about = traces.describe(root, error, "")
            if isinstance(error, _SchemaError):
                about |= {"message": error.message, "path": list(error.absolute_path)}
            _write_answer(out, "failed", [index, number, about])
            return
    if found > MAX_PROBLEMS:
        _write_answer(out, "more", [index, found - MAX_PROBLEMS])


def _policy_problems(
    check: Callable[[dict[str, Any]], Any], value: dict[str, Any]
) -> Iterator[tuple[str, list[Any], str]]:
    """Convert a policy's result to problems. Raises TypeError for anything else."""
    said = check(value)
    if said is None:
        return
    entries: Iterable[Any] = [said] if isinstance(said, str | Problem) else said
    if isinstance(said, dict) or not isinstance(said, Iterable):
        raise TypeError(f"a policy must return or yield strings or `problem(…)`, got {type(said).__name__}")
    for entry in entries:
        if isinstance(entry, str):
            entry = Problem(entry)
        if not isinstance(entry, Problem):
            raise TypeError(f"a policy must return or yield strings or `problem(…)`, got {type(entry).__name__}")
        message, path, help = entry
        if not str(message).strip():
            raise TypeError("a problem needs a non-empty message")
        if any(not isinstance(step, str | int) for step in path):
            raise TypeError(f"a path consists of keys and indexes, got {path!r}")
        yield str(message), list(path), str(help)
