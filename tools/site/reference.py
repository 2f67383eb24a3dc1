"""Reference pages, generated from the code: kinds and their fields, commands, diagnostics, metrics."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence

import typer
from pydantic import BaseModel
from typer.core import TyperCommand, TyperGroup

from avactl.cli.app import COMMANDS, app
from avactl.cli.common import EXIT_CODES
from avactl.diagnostics.codes import CODES
from avactl.program import registry
from avactl.program.explain import introspect
from avactl.program.explain.explain import describe_field, sub_models
from avactl.program.explain.recursive import example_of
from tools.site.links import DIAGNOSTICS, ROOT, TEXTS, relocate
from tools.site.metrics import declared_metrics

KINDS = "reference/kinds/index.md"
_TITLES = {
    "specs": "Specs",
    "changes": "Changes",
    "dataset": "Datasets",
    "local": "On this machine",
    "models": "Models",
    "jobs": "Jobs",
    "cluster": "Clusters and daemons",
}
"""Headings of the commands, by their package."""


def kind_pages() -> dict[str, str]:
    """Return the kinds by the paths of their pages."""
    return {f"reference/kinds/{name.lower()}.md": name for name in registry.kind_names()}


def reference_pages(repository: str) -> dict[str, str]:
    """Return the text of every generated page, by its path on the site. `repository`: URL for links to files."""
    return {
        KINDS: _kinds(),
        **{page: _kind(name) for page, name in kind_pages().items()},
        "reference/commands.md": _commands(),
        DIAGNOSTICS: _diagnostics(repository),
        "reference/metrics.md": _metrics(),
    }


def _cell(text: str) -> str:
    """Return a text for one cell of a table. In code, Markdown keeps `|` and `<` as they are."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("|", "\\|").replace("<", "&lt;") for part in parts)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _kinds() -> str:
    rows = []
    for name in registry.kind_names():
        first = (inspect.getdoc(registry.get_model(name)) or "").split("\n\n")[0]
        rows.append((f"[{name}]({name.lower()}.md)", first))
    intro = "The kinds of specs (`apiVersion: avactl.dev/v1`). `avactl explain KIND` prints the same."
    return f"# Kinds\n\n{intro}\n\n{_table(('kind', 'meaning'), rows)}\n"


def _kind(name: str) -> str:
    model = registry.get_model(name)
    parts = [f"# {name}", inspect.getdoc(model) or ""]
    if example := example_of(name):
        parts.append(f"```yaml\n{example}\n```")
    fields = introspect.fields_by_key(model)
    described: dict[type[BaseModel], str] = {}
    for key in ("metadata", "spec"):
        parts += _section(key, list(sub_models(fields[key].annotation)), described)
    return "\n\n".join(parts) + "\n"


def _section(path: str, models: list[type[BaseModel]], described: dict[type[BaseModel], str]) -> Iterator[str]:
    """Yield the section of a mapping and those of the mappings in it. Models that are `described` are linked to."""
    yield f"{'#' * min(path.count('.') + 2, 4)} {path} {{: #{path} }}"
    below: list[tuple[str, list[type[BaseModel]]]] = []
    for model in models:
        described[model] = path
    for model in models:
        rows = []
        for key, field in introspect.fields_by_key(model).items():
            inner = list(dict.fromkeys(sub_models(field.annotation)))
            new = [each for each in inner if each not in described]
            if new:
                described |= dict.fromkeys(new, f"{path}.{key}")
                below.append((f"{path}.{key}", new))
            shown = f"`{key}`" if not inner else f"[`{key}`](#{described[inner[0]]})"
            rows.append((shown, describe_field(field), field.description or ""))
        yield _table(("field", "type", "meaning"), rows) if rows else "No fields."
    for inner_path, inner_models in below:
        yield from _section(inner_path, inner_models, described)


def _commands() -> str:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    context = typer.Context(group, info_name="avactl")
    if unknown := {command.package for command in COMMANDS.values()} - set(_TITLES):
        raise LookupError(f"packages of commands without a title: {', '.join(sorted(unknown))}")
    parts = ["# Commands", f"`avactl COMMAND --help` prints the same.\n\n{EXIT_CODES}"]
    for package, title in _TITLES.items():
        parts.append(f"## {title}")
        for name in (name for name, command in COMMANDS.items() if command.package == package):
            command = group.resolve_command(context, [name])[1]
            assert isinstance(command, TyperCommand | TyperGroup)
            parts += _command(f"avactl {name}", command, context)
    return "\n\n".join(parts) + "\n"


def _command(words: str, command: TyperCommand | TyperGroup, parent: typer.Context) -> Iterator[str]:
    context = typer.Context(command, info_name=words.rpartition(" ")[2], parent=parent)
    yield f"### {words} {{: #{words.replace(' ', '-')} }}"
    yield inspect.cleandoc(command.help or "")
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            if isinstance(each, TyperCommand) and not each.hidden:
                yield from _command(f"{words} {name}", each, context)
        return
    yield f"```\n{words} {' '.join(command.collect_usage_pieces(context))}\n```"
    records = [each.get_help_record(context) for each in command.params if "--help" not in each.opts]
    if rows := [(f"`{record[0].strip()}`", record[1]) for record in records if record]:
        yield _table(("option", "meaning"), rows)


def _diagnostics(repository: str) -> str:
    stable = "Each problem that avactl reports has a stable code; scripts can rely on it."
    parts = ["# Diagnostics", f"{stable} `avactl explain CODE` prints the same."]
    for code in sorted(CODES):
        source = f"{TEXTS}/{code}.md"
        text = (ROOT / source).read_text(encoding="utf-8").partition("\n\n")[2]
        parts += [f"## {code}", f"*{CODES[code]}*", relocate(text, source, DIAGNOSTICS, repository).strip()]
    return "\n\n".join(parts) + "\n"


def _metrics() -> str:
    parts = ["# Metrics", "Metrics of the daemons at `/metrics`, for Prometheus."]
    rows: dict[str, list[tuple[str, ...]]] = {}
    for metric in declared_metrics():
        daemon = metric.name.split("_")[1]
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.setdefault(daemon, []).append((f"`{metric.name}`", metric.type, labels, metric.meaning))
    for daemon, of_daemon in rows.items():
        parts += [f"## {daemon}", _table(("metric", "type", "labels", "meaning"), of_daemon)]
    return "\n\n".join(parts) + "\n"
