"""Text of `avactl explain`, generated from the models' docstrings and field descriptions."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from avactl import diagnostics
from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.diagnostics.codes import CODES
from avactl.diagnostics.suggest import did_you_mean
from avactl.program import registry
from avactl.program.explain import introspect
from avactl.program.ownership import KUBERNETES, Owned
from avactl.spec.schema.values import Ref, Says

REPOSITORY_URL = "https://github.com/avactl/avactl"
"""As in pyproject.toml, whose URLs are not known where avactl runs without being installed."""


class UnknownTopicError(HintedError):
    """Unknown kind, field or code."""

    exit_code = USAGE


_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "true or false", Any: "anything"}


def _format_bounds(marks: tuple[Any, ...]) -> str:
    low = next((getattr(m, n) for m in marks for n in ("ge", "gt") if getattr(m, n, None) is not None), None)
    high = next((getattr(m, n) for m in marks for n in ("le", "lt") if getattr(m, n, None) is not None), None)
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return f" from {low}" if low is not None else f" up to {high}" if high is not None else ""


def type_text(annotation: Any, marks: tuple[Any, ...] = ()) -> str:
    """Describe a type: `list of names`, `one of single, mpi`, `integer from 1 to 16`."""
    ref = next((mark.kind for mark in marks if isinstance(mark, Ref)), None)
    if ref:
        return f"name of a {ref}"
    says = next((mark.text for mark in marks if isinstance(mark, Says)), None)
    if says:
        return says
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *inner_marks = get_args(annotation)
        flat = [m for mark in inner_marks for m in (getattr(mark, "metadata", None) or [mark])]
        return type_text(inner, (*marks, *flat))
    if origin is Literal:
        return "one of " + ", ".join(str(arg) for arg in get_args(annotation))
    if origin in (list, tuple):
        return f"list of {type_text(get_args(annotation)[0])}"
    if origin is dict:
        return f"mapping from string to {type_text(get_args(annotation)[1])}"
    if introspect.is_model(annotation):
        return "mapping"
    branches = [arg for arg in get_args(annotation) if arg is not type(None)]
    if branches:
        return " or ".join(dict.fromkeys(type_text(branch, marks) for branch in branches))
    return _TYPE_NAMES.get(annotation, "text") + _format_bounds(marks)


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if field.default_factory is not None:
        default = field.default_factory()  # type: ignore[call-arg]
    if default is PydanticUndefined or default is None or default in ([], {}) or isinstance(default, BaseModel):
        return ""
    if isinstance(default, bool):
        return f"default {str(default).lower()}"
    return f"default {', '.join(map(str, default)) if isinstance(default, list) else default}"


def describe_field(field: FieldInfo) -> str:
    """Describe a field's type and default."""
    texts = (type_text(field.annotation, tuple(field.metadata)), _default_text(field))
    return "; ".join(filter(None, texts))


def sub_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models of a field's values, also in lists and mappings."""
    for branch in introspect.branches(annotation):
        if introspect.is_model(branch):
            yield branch
        elif get_origin(branch) in (list, dict):
            yield from sub_models(get_args(branch)[-1])


class Style:
    """Escape sequences of the terminal; empty without colours."""

    def __init__(self, colour: bool) -> None:
        self.bold, self.dim, self.off = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if colour else ("", "", "")


def _format_fields(model: type[BaseModel], style: Style, indent: str = "  ") -> str:
    out = []
    for key, field in introspect.fields_by_key(model).items():
        out.append(f"{indent}{style.bold}{key}{style.off}  {style.dim}{describe_field(field)}{style.off}\n")
        out.append(
            textwrap.fill(
                field.description or "", 100, initial_indent=indent + "    ", subsequent_indent=indent + "    "
            )
            + "\n"
        )
    return "".join(out)


def explain_text(topic: str | None, colour: bool = False) -> str:
    """Return the text of `avactl explain`. Raises UnknownTopicError."""
    style = Style(colour)
    if not topic:
        return _format_overview(style)
    if topic in CODES:
        return f"{style.bold}{topic}{style.off}\n  {CODES[topic]}\n\n{_diagnostic_text(topic)}"
    name, path, field, models = topic_of(topic)
    if field is None:
        return _format_kind(name, models[0], style)
    out = [f"{style.bold}{name}.{'.'.join(path)}{style.off}  {style.dim}{describe_field(field)}{style.off}\n"]
    out.append(textwrap.fill(field.description or "", 100, initial_indent="  ", subsequent_indent="  ") + "\n")
    for sub in models:
        out.append("\n" + _format_fields(sub, style))
    return "".join(out)


def _diagnostic_text(code: str) -> str:
    """Return the text of a code without its heading; links are URLs of the repository's files."""
    text = (files(diagnostics) / "texts" / f"{code}.md").read_text(encoding="utf-8")
    _, _, body = text.partition("\n\n")
    return textwrap.indent(body.replace("](../../../", f"]({REPOSITORY_URL}/blob/main/"), "  ")


def topic_of(topic: str) -> tuple[str, list[str], FieldInfo | None, list[type[BaseModel]]]:
    """Return the kind of a topic such as `TrainingJob.spec.workers`, the path, its field, and the models at it.

    Without a path, the field is None and the model that of the kind. Raises UnknownTopicError.
    """
    head, *path = re.sub(r"\[[^\]]*\]", "", topic).split(".")  # as diagnostics write paths: `spec.datasets[0].name`
    by_lower = {name.lower(): name for name in registry.kind_names()}
    name = by_lower.get(head.lower())
    if name is None:
        known = [*registry.kind_names(), *(() if head[:1].isupper() else CODES)]
        raise UnknownTopicError(f"unknown kind or diagnostic code `{head}`", did_you_mean(head, known, "known kinds"))
    model: type[BaseModel] = registry.get_model(name)
    if not path:
        return name, [], None, [model]
    return name, *_find_field(name, model, path)


def drift_text(topic: str | None, colour: bool = False) -> str:
    """Return the text of `avactl explain --drift`: controller-owned fields of all kinds, or of one kind.

    Raises UnknownTopicError.
    """
    style = Style(colour)
    ours = {name: registry.get_kind(name).owned for name in registry.kind_names()}
    kubernetes = {owned.kind for owned in (*KUBERNETES, *(owned for each in ours.values() for owned in each))} - {"*"}
    by_lower = {name.lower(): name for name in (*kubernetes, *ours)}
    chosen = by_lower.get(topic.lower()) if topic else None
    if topic and chosen is None:
        raise UnknownTopicError(f"unknown kind `{topic}`", did_you_mean(topic, sorted(by_lower.values()), "kinds"))
    out = ["Fields owned by controllers: changes to them are not drift and are never reverted.\n"]
    if chosen not in ours:
        for kind in ("*", *([chosen] if chosen else sorted(kubernetes))):
            out += _format_owned(
                kind if kind != "*" else "every kind", [o for o in KUBERNETES if o.kind == kind], style
            )
    for name, declared in ours.items():
        if chosen is None or chosen == name or any(owned.kind == chosen for owned in declared):
            if not declared and chosen == name:
                out.append(f"\n{style.bold}{name}{style.off}\n  no fields of its own; see `avactl explain --drift`\n")
            out += _format_owned(f"{name} (avactl)", declared, style, of=True)
    return "".join(out)


def _format_owned(title: str, owned: Sequence[Owned], style: Style, *, of: bool = False) -> list[str]:
    lines = [f"  {f'{each.kind} ' if of else ''}{each}  {style.dim}{each.by}{style.off}\n" for each in owned]
    return [f"\n{style.bold}{title}{style.off}\n", *lines] if lines else []


def _format_overview(style: Style) -> str:
    out = [f"{style.bold}Kinds{style.off} (apiVersion avactl.dev/v1)\n"]
    for name in registry.kind_names():
        first = (inspect.getdoc(registry.get_model(name)) or "").split("\n\n")[0].replace("\n", " ")
        out.append(f"  {style.bold}{name:<18}{style.off} {first}\n")
    out.append("\n`avactl explain KIND` shows a kind, `avactl explain KIND.spec.field` a field.\n")
    return "".join(out)


def _format_kind(name: str, model: type[BaseModel], style: Style) -> str:
    doc = inspect.getdoc(model) or ""
    fields = introspect.fields_by_key(model)
    out = [f"{style.bold}{name}{style.off}\n", textwrap.indent(doc, "  "), "\n\n"]
    for part in ("metadata", "spec"):
        out.append(f"{style.bold}{part}{style.off}\n")
        for sub in sub_models(fields[part].annotation):
            out.append(_format_fields(sub, style))
        out.append("\n")
    return "".join(out).rstrip("\n") + "\n"


def _find_field(
    name: str, model: type[BaseModel], path: list[str]
) -> tuple[list[str], FieldInfo | None, list[type[BaseModel]]]:
    if path[0] not in introspect.fields_by_key(model):
        path = ["spec", *path]
    models: list[type[BaseModel]] = [model]
    field: FieldInfo | None = None
    for depth, key in enumerate(path):
        found = [introspect.fields_by_key(m)[key] for m in models if key in introspect.fields_by_key(m)]
        if not found:
            known = sorted({k for m in models for k in introspect.fields_by_key(m)})
            where = ".".join([name, *path[:depth]])
            if not known:
                raise UnknownTopicError(f"`{where}` is a single value without fields", f"see `avactl explain {where}`")
            raise UnknownTopicError(f"`{where}` has no field `{key}`", did_you_mean(key, known, "known fields"))
        field = found[0]
        models = list(sub_models(field.annotation))
    return path, field, models
