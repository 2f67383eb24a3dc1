"""`avactl set`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.base.exit_codes import MISSING, PROBLEMS, USAGE
from avactl.base.terminal import use_colour
from avactl.cli import completion
from avactl.cli.common import TEXT, choose_source, exit_with, open_repository, render_diagnostics, replace_file


def set_(
    file: Annotated[Path, typer.Argument(help="Spec file.", exists=True, dir_okay=False)],
    edits: Annotated[
        list[str],
        typer.Argument(
            help="PATH=VALUE, or PATH- to remove a key; e.g. spec.workers.replicas=8.",
            autocompletion=completion.complete_edit,
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Spec to change if the file has several: NAME or KIND/NAME.",
            autocompletion=completion.names_in_file,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write even if validation fails.")] = False,
) -> None:
    """Change values of a spec in place; comments, order and quoting are preserved."""
    from avactl.compiler.validate import validate_document
    from avactl.spec.documents.credentials import new_credentials
    from avactl.spec.documents.edit import parse_edit, set_values
    from avactl.spec.documents.yaml import load_yaml
    from avactl.spec.repository.checkout import WORK_TREE
    from avactl.spec.repository.tree import DirTree, MemoryTree

    choose_source(WORK_TREE)  # that is what is changed, by one `set` after another
    if file.suffix == ".py":
        exit_with(f"{file}: Python spec files cannot be changed by `set`", USAGE, "edit the file")
    tree = DirTree(file.parent, [file.name])
    try:
        data = file.read_bytes()
    except OSError as error:
        exit_with(f"{file}: {error.strerror}", MISSING)
    documents, problems = load_yaml(file.name, data)
    problems = [p for p in problems if p.code != "credential-literal"]  # the edit may remove the credential
    if any(p.severity == "error" for p in problems):
        sys.stderr.write(render_diagnostics(problems, tree, TEXT, use_colour(sys.stderr)))
        raise typer.Exit(PROBLEMS)
    wanted = [d for d in documents if name is None or name in (_name(d.value), f"{d.get('kind')}/{_name(d.value)}")]
    if len(wanted) != 1:
        specs = ", ".join(f"{d.get('kind')}/{_name(d.value)}" for d in documents)
        if not documents:
            exit_with(f"{file} contains no spec", USAGE)
        told = f"no spec in {file} is named {name}" if name and not wanted else f"{file} contains several specs"
        exit_with(told, USAGE, f"choose with --name: {specs}")
    document = wanted[0]
    # Line endings are preserved: the edit works on characters.
    text = data.decode("utf-8-sig")
    new = set_values(file.name, text, document.index, [parse_edit(edit) for edit in edits])
    changed, _ = load_yaml(file.name, new.encode())
    after = next(d for d in changed if d.index == document.index)
    result = validate_document(after)
    wrong = new_credentials(document, after)
    if isinstance(result, list):
        # A spec that extends a template, or an overlay, is incomplete by itself: only what the edit brings counts.
        before = validate_document(document)
        known = {(each.code, each.message) for each in before} if isinstance(before, list) else ()
        wrong += [each for each in result if (each.code, each.message) not in known]
    if wrong and not force:
        content = MemoryTree({file.name: new.encode()})
        sys.stderr.write(render_diagnostics(wrong, tree, TEXT, use_colour(sys.stderr), content))
        exit_with("nothing was written", PROBLEMS, "--force writes it anyway")
    if new != text and not force:
        _want_no_new_errors(file, new)
    if new != text:
        bom = "\ufeff" if data.startswith(b"\xef\xbb\xbf") else ""
        replace_file(file, (bom + new).encode())
    for line in _decided_elsewhere(file, document.index, edits):
        print(line, file=sys.stderr)


def _decided_elsewhere(file: Path, index: int, edits: list[str]) -> list[str]:
    """Return a line for each value that an overlay decides in an environment."""
    from avactl.compiler.config import load_config
    from avactl.spec.documents.edit import parse_edit

    tree, asked = open_repository([file])
    environments = load_config(tree)[0].environments if asked else {}
    if not environments:
        return []
    from avactl.compiler.layers.origin import OriginError, Specs, deciding_overlay
    from avactl.spec.repository.tree import DirTree

    found = []
    for name in environments:
        try:
            document = Specs(DirTree(tree.root, environment=name)).at(asked[0], index)
        except OriginError:
            continue  # not a spec of this environment, or one with problems, which `validate` reports
        for edit in edits:
            path, _ = parse_edit(edit)
            source = deciding_overlay(document, path)
            if source is not None:
                found.append(f"note: in environment {name}, {source.span} decides {path}")
    return found


def _want_no_new_errors(file: Path, text: str) -> None:
    """Exit with PROBLEMS if the repository would have an error that it does not have now."""
    from avactl.compiler.driver import compile_tree
    from avactl.spec.repository.tree import OverlayTree

    tree, _ = open_repository([file])
    path = (file.parent.resolve() / file.name).relative_to(tree.root.resolve()).as_posix()
    changed = OverlayTree(tree, path, text.encode())
    after = compile_tree(changed)
    if after.ok:
        return
    now = compile_tree(tree)
    before = [d for d in now.untraced if d.severity == "error"]
    texts, places = {(d.code, d.message) for d in before}, {d.span[:2] for d in before}
    # Another error of a line that has one already is no reason: the edit may have mended the first.
    wrong = [d for d in after.untraced if d.severity == "error"]
    wrong = [d for d in wrong if (d.code, d.message) not in texts and d.span[:2] not in places]
    if wrong:
        wrong = [d for d in after.diagnostics if d.severity == "error" and d not in now.diagnostics] or wrong
        sys.stderr.write(render_diagnostics(wrong, tree, TEXT, use_colour(sys.stderr), changed))
        exit_with("nothing was written", PROBLEMS, "--force writes it anyway")


def _name(value: object) -> str:
    metadata = value.get("metadata") if isinstance(value, dict) else None
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
