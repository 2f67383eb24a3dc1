"""Shell completion of names from the repository: clusters, stacks, specs, and paths of fields.

Files are only read, not compiled, and Python spec files are not evaluated: completion runs at a key press.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

_MAX_SPECS = 500
"""Maximum number of files that are searched."""


def _repository_specs(directory: Path) -> Iterator[tuple[str, str, str]]:
    """Yield kind, team and name of the specs of the repository around a directory."""
    from avactl.compiler.config import load_config
    from avactl.compiler.load import load_file
    from avactl.compiler.selection import spec_files
    from avactl.spec.repository.tree import DirTree, find_root

    root = find_root(directory)
    if not (root / "avactl.yaml").is_file():
        return  # the tree of another directory may be large
    tree = DirTree(root)
    config, _ = load_config(tree)
    paths = [path for path in spec_files(config.include, config.exclude, tree.paths()) if not path.endswith(".py")]
    for path in paths[:_MAX_SPECS]:
        for document in load_file(tree, path)[0]:
            texts = [document.get("kind"), document.get("metadata", "team") or "", document.get("metadata", "name")]
            if all(isinstance(text, str) for text in texts):
                yield texts[0], texts[1], texts[2]


def _matching_words(words: set[str], incomplete: str) -> list[str]:
    return sorted(word for word in words if word.startswith(incomplete))


def complete_cluster(incomplete: str) -> list[str]:
    """Complete the name of a Cluster."""
    return _matching_words({name for kind, _, name in _repository_specs(Path()) if kind == "Cluster"}, incomplete)


def complete_stack(incomplete: str) -> list[str]:
    """Complete the name of a Pulumi stack: CLUSTER for the platform's, CLUSTER.TEAM for a team's."""
    specs = set(_repository_specs(Path()))
    places = [name for kind, _, name in specs if kind == "Cluster"]
    teams = {team for _, team, _ in specs if team}
    return _matching_words(
        {f"{place}.{team}" if team else place for place in places for team in ("", *teams)}, incomplete
    )


def complete_pool(incomplete: str) -> list[str]:
    """Complete the name of a NodePool."""
    return _matching_words({name for kind, _, name in _repository_specs(Path()) if kind == "NodePool"}, incomplete)


def names_in_file(ctx: Any, incomplete: str) -> list[str]:
    """Complete NAME or KIND/NAME of a spec in the file of the command line."""
    found = _edited_documents(ctx)
    both = {(str(document.get("kind")), str(document.get("metadata", "name"))) for document in found}
    return _matching_words({word for kind, name in both for word in (name, f"{kind}/{name}")}, incomplete)


def complete_edit(ctx: Any, incomplete: str) -> list[str]:
    """Complete the path of a field of the spec that `set` changes, up to `=`."""
    if "=" in incomplete:
        return []
    named = ctx.params.get("name")
    kinds = {
        str(document.get("kind"))
        for document in _edited_documents(ctx)
        if named
        in (None, document.get("metadata", "name"), f"{document.get('kind')}/{document.get('metadata', 'name')}")
    }
    below = {path.partition(".")[2] for kind in kinds for path in complete_topic(f"{kind}.{incomplete}")}
    return sorted(below - {""})


def _edited_documents(ctx: Any) -> list[Any]:
    from avactl.compiler.load import load_file
    from avactl.spec.repository.tree import DirTree

    file = ctx.params.get("file")
    if file is None or not Path(file).is_file():
        return []
    return load_file(DirTree(Path(file).parent, [Path(file).name]), Path(file).name)[0]


def complete_topic(incomplete: str) -> list[str]:
    """Complete a kind, a diagnostic code, or the path of a field: one key at a time, with a dot if there are more."""
    from avactl.diagnostics.codes import CODES
    from avactl.program import registry
    from avactl.program.explain import introspect

    kind, dot, path = incomplete.partition(".")
    if not dot:
        return _matching_words({*registry.kind_names(), *CODES, "policies"}, incomplete) or [
            name for name in registry.kind_names() if name.lower().startswith(incomplete.lower())
        ]
    if kind not in registry.kind_names():
        return []
    *above, begun = path.split(".")
    found = []
    for model in introspect.models_at(registry.get_model(kind), tuple(above)):
        for key, field in introspect.fields_by_key(model).items():
            if key.startswith(begun):
                inner = any(introspect.is_model(branch) for branch in introspect.branches(cast(Any, field.annotation)))
                found.append(".".join((kind, *above, key)) + ("." if inner else ""))
    return sorted(set(found))
