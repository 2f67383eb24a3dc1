"""`avactl dataset label-tasks` and `label-results`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.base.terminal import count_text

Studio = Annotated[
    str, typer.Option("--studio", metavar="URL", envvar="LABEL_STUDIO_URL", help="Label Studio, e.g. https://…:8080")
]
ProjectId = Annotated[int, typer.Option("--project", metavar="ID", min=1, help="Project, by the id in its URL.")]


def label_tasks(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Manifest of the objects.")],
    studio: Studio,
    project: ProjectId,
    data: Annotated[
        str, typer.Option(metavar="NAME", help="Value of the object's URL in the labelling setup.")
    ] = "image",
) -> None:
    """Make a task of Label Studio for each object of a manifest that has none yet.

    The token is LABEL_STUDIO_API_KEY. Labels of the manifest are in the task as `labels`.
    """
    from avactl.datasets.errors import ArgumentError
    from avactl.datasets.labelling.studio import OBJECT, Project
    from avactl.datasets.manifest import read_valid
    from avactl.datasets.ordering import valid_in_order
    from avactl.datasets.progress import PackProgress

    if data in (OBJECT, "labels"):
        raise ArgumentError(f"`--data {data}` is a name of avactl's own", "choose another one in the labelling setup")
    with PackProgress(sys.stderr) as progress:
        progress.start("reading")
        reader = read_valid(manifest, progress.counted)
        progress.start("sending", reader.objects)
        added, kept = Project(studio, project).add_tasks(progress.counted(valid_in_order(reader)), data)
    print(f"project {project}: {count_text(added, 'new task')}, {kept:,} before")


def label_results(
    studio: Studio,
    project: ProjectId,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSON lines for `avactl dataset label`.")],
    agreement: Annotated[
        float, typer.Option(min=0, max=1, help="Least share of the people who agree; ties are left out.")
    ] = 0.5,
    people: Annotated[int, typer.Option(min=1, help="People who must have labelled an object.")] = 1,
) -> None:
    """Write the labels on which people agree, and print how much they do.

    The agreement of a label is the share of pairs of people who say exactly the same of an object.
    """
    import orjson

    from avactl.datasets.labelling.agreement import AgreementCounts, agreed_labels
    from avactl.datasets.labelling.studio import Project
    from avactl.datasets.snapshot import write_lines

    counts = AgreementCounts()
    found = agreed_labels(Project(studio, project).tasks(), agreement, people, counts)
    rows = (orjson.dumps({"url": each.url, "labels": each.labels}, option=orjson.OPT_APPEND_NEWLINE) for each in found)
    write_lines(out, rows)
    print(f"{out}: {count_text(counts.labelled, 'object')} of {counts.objects:,}, {counts.annotations:,} annotations")
    for name, share in counts.agreement().items():
        print(f"agreement on {name}: {share:.2f} of {count_text(counts.pairs[name], 'pair')}")
    if counts.disputed:
        print(f"left out {count_text(counts.disputed, 'label')} without enough agreement")
    if counts.refused:
        annotations = count_text(counts.refused, "annotation")
        print(f"left out {annotations} with other controls than the project's, or with values that are not labels")
