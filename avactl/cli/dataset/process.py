"""`avactl dataset process`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.terminal import count_text
from avactl.cli.dataset.options import Endpoint

if TYPE_CHECKING:
    from avactl.diagnostics import Span
    from avactl.spec.documents.document import Document, Path
    from avactl.spec.schema.processing import Step


def process(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Directory, prefix of a store, or manifest (also in a store).")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Empty directory or prefix of a store.")],
    steps: Annotated[
        str,
        typer.Option(
            "--steps",
            "-s",
            metavar="FILE",
            help="YAML file with the steps or a spec with them; or the list itself.",
        ),
    ],
    skip_invalid: Annotated[
        int, typer.Option("--skip-invalid", metavar="N", min=0, help="Leave out up to N objects that are invalid.")
    ] = 0,
    jobs: Annotated[
        int, typer.Option(min=0, max=256, help="Objects processed at once.", show_default="one per core")
    ] = 0,
    endpoint: Endpoint = "",
    source_endpoint: Annotated[
        str, typer.Option(metavar="URL", help="S3 endpoint of the source.", show_default="--endpoint")
    ] = "",
) -> None:
    """Make a version of a dataset from another one by steps: resize, crop, convert, take frames, call a function.

    TARGET.manifest/manifest.jsonl lists the new objects with the labels of the old ones. Run the same command again to
    continue after an interruption. With AVACTL_MASTER set, it is one of the workers of a job.
    """
    from avactl.datasets.errors import DatasetError
    from avactl.datasets.process.plan import Places
    from avactl.datasets.process.run import ProcessOptions, run_here, run_worker
    from avactl.datasets.progress import PackProgress
    from avactl.datasets.sources import is_remote
    from avactl.datasets.text import size_text

    from_endpoint = source_endpoint or (endpoint if is_remote(source) else "")
    to_endpoint = endpoint if is_remote(target) or not is_remote(source) else ""
    places = Places(source, target, to_endpoint, from_endpoint)
    given = tuple(_read_steps(steps))
    options = ProcessOptions(places, given, skip_invalid, jobs or len(os.sched_getaffinity(0)))
    job = bool(os.environ.get("AVACTL_MASTER"))
    with PackProgress(sys.stderr) as progress:
        if job:
            done = run_worker(options, os.environ.get("AVACTL_WORKER", "").endswith("-0"), progress)
        else:
            done = run_here(options, progress)
    if done is None:
        return
    earlier = ", complete since an earlier run" if done.earlier else ""
    made = f"{count_text(done.source, 'object')} → {count_text(done.objects, 'object')}, {size_text(done.bytes)}"
    print(f"{target}: {made}{earlier}")
    if done.skipped:
        print(f"left out {count_text(done.skipped, 'invalid object')}: {done.first_skipped}")
    if done.unchanged:
        print(f"{count_text(done.unchanged, 'object')} as in the source: no step changes them")
    print(f"manifest: {done.manifest}, sha256 {done.sha256}")
    if done.source_change and done.earlier and not job:
        raise DatasetError(done.source_change, "process it into an empty directory or prefix, as a new version")
    if done.source_change:
        print(f"note: {done.source_change}")


def _read_steps(text: str) -> list[Step]:
    """Return the steps of a file or of a text. Raises ArgumentError."""
    from pathlib import Path

    from pydantic import ValidationError

    from avactl.compiler.errors import to_diagnostics
    from avactl.datasets.errors import ArgumentError
    from avactl.spec.documents.document import Document
    from avactl.spec.documents.yaml import load_yaml
    from avactl.spec.schema.processing import StepFile

    name = "--steps" if text.lstrip().startswith("[") else text
    if name == text:
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            hint = "name a file, or write the list: `--steps '[{rotate: 90}]'`"
            raise ArgumentError(f"{name}: {getattr(error, 'strerror', None) or error}", hint) from None
    documents, problems = load_yaml(name, text.encode())
    if problems:
        raise ArgumentError(f"{name}:{problems[0].span.line}: {problems[0].message}", problems[0].hint)
    found = [each for each in documents if each.get("spec", "steps") is not None]
    if len(found) > 1:
        raise ArgumentError(f"{name} has {len(found)} specs with steps", "write those of one to a file of their own")
    given = found[0].get("spec", "steps") if found else documents[0].value if len(documents) == 1 else None
    if not isinstance(given, list):
        hint = "write a list of steps: `- resize: {width: 256, height: 256}`"
        raise ArgumentError(f"{name} is no list of steps, and no spec with one", hint)
    try:
        return StepFile.model_validate({"steps": given}).steps
    except ValidationError as error:
        place = _Below(found[0] if found else documents[0], ("spec", "steps") if found else ())
        problem = to_diagnostics(StepFile, Document(name, 0, {"steps": given}, place), error)[0]
        raise ArgumentError(f"{name}:{problem.span.line}: {problem.message}", problem.hint) from None


class _Below:
    """Locates the values of steps in the document that has them."""

    def __init__(self, document: Document, path: Path) -> None:
        self._document, self._path = document, path

    def locate(self, index: int, path: Path, key: bool) -> Span:
        """Return the location of a value of a `StepFile`."""
        return self._document.span(*self._path, *path[1:], key=key)
