"""Platform images: check that a spec's clusters define the images it needs."""

from __future__ import annotations

from typing import Literal

from avactl.diagnostics import Diagnostic, Note
from avactl.program.program import Item, Program

Use = Literal["avactl", "alluxio", "juicefs", "git", "tensorboard", "fetch", "kubectl"]
"""A key of `Cluster.spec.images`."""


def require_image(item: Item, program: Program, use: Use, path: tuple[str | int, ...]) -> list[Diagnostic]:
    """Return a problem at `path` for each cluster of the item that has no image for this use."""
    problems = []
    dotted = ".".join(str(step) for step in path[1:])
    for name in item.clusters:
        cluster = program.find_cluster(name)
        if cluster is None or getattr(cluster.spec.images, use) is not None:
            continue
        where: tuple[str, ...] = ("images",) if "images" in cluster.spec.model_fields_set else ()
        note = Note(cluster.span("spec", *where, key=True), f"images of cluster {name}")
        own = item is cluster
        problems.append(
            Diagnostic(
                "missing-image",
                f"{f'`{dotted}`' if own else item} needs the image `{use}`, which Cluster {name} does not define",
                item.span(*path, key=True),
                hint=f"add `{use}: NAME@sha256:…` to `images` of Cluster {name}",
                notes=() if own else (note,),
            )
        )
    return problems
