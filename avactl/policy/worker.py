"""Policies at work, in a process that can do nothing but compute (`avactl.source.sandbox_runner`).

What they find is written as it is found, a line of JSON each, so that what did not end in time is known by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, BinaryIO

from avactl.policy import DECLARED, MOST_PROBLEMS, Policy, Problem
from avactl.source import traces
from avactl.source.sandbox import enter

_MODULE = "avactl_policies"

Subject = tuple[str, str]
"""Kind of a spec or an object, and itself as JSON: each policy gets a copy of its own."""


def main(request: dict[str, Any]) -> None:
    """The child's main program.

    `path` names the file; or `schema` is a JSON Schema, and `policy` what it is called and over. `subjects` is the file
    with what is to be looked at.
    """
    import os

    schema = request.get("schema")
    if schema is not None:
        with suppress(ImportError):  # told below
            import jsonschema  # noqa: F401 - before the door closes

    os.environ.clear()
    os.chdir(request["root"])
    enter(request)
    root = request["root"].rstrip("/") + "/"
    with open(request["answer"], "wb", buffering=0) as out:  # noqa: PTH123 - a descriptor
        try:
            if schema is None:
                policies = _declared(root, request["path"], request["import"])
            else:
                policies = [_schema_policy(schema, **request["policy"])]
        except BaseException as error:
            about = traces.describe(root, error, request["path"])
            if hasattr(error, "absolute_path"):  # jsonschema's: the last line of its text is a part of the schema
                about |= {"message": getattr(error, "message", ""), "path": list(error.absolute_path)}
            _say(out, "broken", about)
            return
        for policy in policies:
            _say(out, "policy", {**policy._asdict(), "check": _place(root, policy)})
        with open(request["subjects"], "rb") as file:  # noqa: PTH123
            subjects = json.load(file)
        for index, policy in enumerate(policies):
            _say(out, "begins", index)
            _run(out, root, policy, index, subjects[policy.over])
        _say(out, "ends", None)


def _say(out: BinaryIO, what: str, value: Any) -> None:
    out.write(json.dumps([what, value], default=str, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _place(root: str, policy: Policy) -> list[Any]:
    """Where a policy's function is defined; [] where it has no code of its own."""
    code = getattr(policy.check, "__code__", None)
    if code is None or not code.co_filename.startswith(root):
        return []
    return list(traces.position(root, code, 0))


def _declared(root: str, path: str, packages: Sequence[str]) -> list[Policy]:
    """The policies of a file. It imports as spec files do: from beside it and from the root of the repository."""
    file = f"{root}{path}"
    module = ModuleType(_MODULE)
    module.__file__ = file
    sys.modules[_MODULE] = module
    library = [entry for entry in sys.path if entry not in packages]
    sys.path[:] = dict.fromkeys([*library, file.rpartition("/")[0], root, *packages])
    with open(file, "rb") as source:  # noqa: PTH123
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - what this process is for
    return list(DECLARED)


def _schema_policy(schema: Any, **declared: Any) -> Policy:
    """A JSON Schema as a policy. Raises jsonschema's SchemaError."""
    import jsonschema
    from referencing import Registry

    form = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    form.check_schema(schema)
    over = declared["over"]
    # An empty registry: what a `$ref` names is in the schema itself, and never fetched.
    validator = form(schema, registry=Registry())

    def check(value: dict[str, Any]) -> Iterator[Problem]:
        for error in _errors(validator, value):
            path = tuple(error.absolute_path)
            where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
            # Of an object, the path is told behind it.
            yield Problem(f"{where}: {_said(error)}" if where and over == "specs" else _said(error), path)

    return Policy(check=check, **declared)


class _SchemaError(ValueError):
    """What is wrong with a schema shows only when it is held against something."""

    def __init__(self, message: str, path: Sequence[str | int] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.absolute_path = path


def _errors(validator: Any, value: dict[str, Any]) -> Iterator[Any]:
    """What a schema finds. Raises _SchemaError where a `$ref` of it leads nowhere."""
    from referencing.exceptions import Unresolvable

    try:
        yield from validator.iter_errors(value)
    except Unresolvable as error:
        # Of a reference within the schema, the library quotes what follows the `#`, and then the whole schema.
        named = str(error).partition(" does not exist within ")[0].rstrip("'")
        refs = [(path, ref) for path, ref in _refs(validator.schema) if named.endswith(ref.removeprefix("#"))]
        path, ref = refs[0] if refs else ((), str(error.ref))
        why = "leads to nothing in the schema"
        if not ref.startswith("#"):
            why = "leads out of the schema, and nothing is fetched: copy what is meant into `$defs`"
        raise _SchemaError(f"`$ref: {ref}` {why}", path) from None
    except RecursionError:
        raise _SchemaError("a `$ref` of it leads back to itself without an end") from None


def _refs(schema: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """All references in a schema, and where they stand."""
    inner = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    for key, value in inner:
        if key == "$ref" and isinstance(value, str):
            yield (*path, key), value
        else:
            yield from _refs(value, (*path, key))


def _said(error: Any) -> str:
    """What a schema's error says. Of a large value, what was expected of it instead of itself."""
    message = str(error.message)
    if len(message) > 200:
        message = f"does not match `{error.validator}`: {json.dumps(error.validator_value)[:200]}"
    return message


def _run(out: BinaryIO, root: str, policy: Policy, index: int, subjects: Sequence[Subject]) -> None:
    """Hold one policy against all that it looks at. What it raises ends it, and is told once."""
    found = 0
    kinds = frozenset(policy.kinds)
    for number, (kind, text) in enumerate(subjects):
        if kinds and kind not in kinds:
            continue
        try:
            for message, path, help in _problems(policy.check, json.loads(text)):
                found += 1
                if found <= MOST_PROBLEMS:
                    _say(out, "problem", [index, number, message, path, help])
        except BaseException as error:
            about = traces.describe(root, error, "")
            if isinstance(error, _SchemaError):
                about |= {"message": error.message, "path": list(error.absolute_path)}
            _say(out, "failed", [index, number, about])
            return
    if found > MOST_PROBLEMS:
        _say(out, "more", [index, found - MOST_PROBLEMS])


def _problems(check: Callable[[dict[str, Any]], Any], value: dict[str, Any]) -> Iterator[tuple[str, list[Any], str]]:
    """What a policy says of one value. Raises TypeError where that is not what policies say."""
    said = check(value)
    if said is None:
        return
    entries: Iterable[Any] = [said] if isinstance(said, str | Problem) else said
    if isinstance(said, dict) or not isinstance(said, Iterable):
        raise TypeError(f"a policy returns or yields texts and `problem(…)`, got {type(said).__name__}")
    for entry in entries:
        if isinstance(entry, str):
            entry = Problem(entry)
        if not isinstance(entry, Problem):
            raise TypeError(f"a policy returns or yields texts and `problem(…)`, got {type(entry).__name__}")
        message, path, help = entry
        if not str(message).strip():
            raise TypeError("a problem needs a text that says what is wrong, got an empty one")
        if any(not isinstance(step, str | int) for step in path):
            raise TypeError(f"a path is of keys and indexes, got {path!r}")
        yield str(message), list(path), str(help)
