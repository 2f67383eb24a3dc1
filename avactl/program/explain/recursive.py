"""Text of `avactl explain --recursive`: all fields below a kind or a field, and an example of the kind."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

import yaml
from pydantic import BaseModel

from avactl.program.explain import introspect
from avactl.program.explain.explain import Style, describe_field, sub_models, topic_of


def recursive_text(topic: str, colour: bool = False) -> str:
    """Return all fields below a kind or field in the order of the spec. Raises UnknownTopicError."""
    style = Style(colour)
    name, path, field, models = topic_of(topic)
    out = [f"{style.bold}{'.'.join([name, *path])}{style.off}"]
    if field is not None:
        out[0] += f"  {style.dim}{describe_field(field)}{style.off}"
    for model in models:
        out += _format_fields(model, style, "  ", (model,))
    if not path and (example := example_of(name)):
        out += ["", f"{style.bold}Example{style.off}", *(f"  {line}" for line in example.splitlines())]
    return "\n".join(out) + "\n"


def _format_fields(
    model: type[BaseModel], style: Style, indent: str, above: tuple[type[BaseModel], ...]
) -> Iterator[str]:
    for key, field in introspect.fields_by_key(model).items():
        yield f"{indent}{style.bold}{key}{style.off}  {style.dim}{describe_field(field)}{style.off}".rstrip()
        for inner in sub_models(field.annotation):
            if inner not in above:  # a model may contain itself
                yield from _format_fields(inner, style, f"{indent}  ", (*above, inner))


def example_of(kind: str) -> str:
    """Return an example of a built-in kind as YAML; "" for others. All of them together compile."""
    text = (files(__package__) / "examples.yaml").read_text()
    documents = (part.lstrip("# ").partition("apiVersion:") for part in text.split("\n---\n"))
    for _, begin, rest in documents:
        if yaml.safe_load(begin + rest)["kind"] == kind:
            return (begin + rest).rstrip("\n")
    return ""
