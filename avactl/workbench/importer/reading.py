"""Read manifests of files, directories and standard input, within bounds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath
from typing import Any, BinaryIO

from avactl.diagnostics import Diagnostic
from avactl.spec.documents.document import Document, Path
from avactl.spec.documents.yaml import MAX_BYTES, load_yaml, written_scalar
from avactl.spec.repository.tree_files import ODD_NAME, odd_name
from avactl.workbench.importer.model import GivenValue, ImportProblem
from avactl.workbench.importer.slurm import script

_MAX_SCRIPT_HEAD = 4096
"""Bytes of a file in which options of Slurm are looked for."""
MAX_FILES = 5000
MAX_OBJECTS = 20_000
"""Most objects of one import."""
MAX_TOTAL_BYTES = 128 * 1024 * 1024
"""Most bytes of one import."""
_OCTAL = re.compile(rb"(?<![\w.])0[0-7]+(?![\w.])").search
_MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")


def read(paths: Iterable[FilePath], stdin: BinaryIO) -> list[GivenValue]:
    """Return the objects of all files; `-` reads standard input. Raises ImportProblem."""
    found: list[GivenValue] = []
    total = 0
    for name, data in _read_contents(paths, stdin):
        total += len(data)
        if total > MAX_TOTAL_BYTES:
            raise ImportProblem(f"the manifests have more than {MAX_TOTAL_BYTES >> 20} MiB", "import them in parts")
        found += read_objects(name, data)
        if len(found) > MAX_OBJECTS:
            raise ImportProblem(f"the manifests have more than {MAX_OBJECTS:,} objects", "import them in parts")
    return found


def read_scripts(paths: Iterable[FilePath], stdin: BinaryIO) -> list[GivenValue]:
    """Return the batch scripts of files; `-` reads standard input. Raises ImportProblem."""
    return [each for name, data in _read_contents(paths, stdin) for each in script.read_script(name, data)]


def _read_contents(paths: Iterable[FilePath], stdin: BinaryIO) -> Iterator[tuple[str, bytes]]:
    count = 0
    for path in paths:
        if str(path) == "-":
            yield "<stdin>", stdin.read(MAX_BYTES + 1)
            continue
        for file in _manifest_files(path):
            count += 1
            if count > MAX_FILES:
                raise ImportProblem(f"there are more than {MAX_FILES:,} files", "import them in parts")
            if odd_name(file.as_posix()):
                raise ImportProblem(f"{file}: {ODD_NAME}", "rename it")
            try:
                if not file.is_file():
                    raise ImportProblem(f"{file}: neither a file nor a directory")
                with file.open("rb") as stream:
                    yield file.as_posix(), stream.read(MAX_BYTES + 1)
            except OSError as error:
                raise ImportProblem(f"{file}: {(error.strerror or str(error)).lower()}") from None


def _manifest_files(path: FilePath) -> Iterator[FilePath]:
    if not path.is_dir():
        yield path
        return
    for directory, below, names in os.walk(path):
        below[:] = sorted(each for each in below if not each.startswith("."))
        for name in sorted(names):
            if name.endswith(_MANIFEST_SUFFIXES) and not name.startswith("."):
                yield FilePath(directory) / name


def read_objects(file: str, data: bytes) -> list[GivenValue]:
    """Return the objects of one file; lists are taken apart. Raises ImportProblem."""
    if b"\n#SBATCH" in data[:_MAX_SCRIPT_HEAD]:
        raise ImportProblem(f"{file}: this is a batch script of Slurm", f"write `avactl import slurm {file}`")
    documents, problems = load_yaml(file, data)
    for problem in problems:
        if problem.severity == "error" and problem.code not in ("empty-file", "credential-literal"):
            raise ImportProblem(_problem_text(problem), problem.hint)
    if _OCTAL(data):
        for document in documents:
            _read_octals(document, document.value, ())
    return [given for document in documents for given in _document_entries(document)]


def _read_octals(document: Document, value: Any, path: Path) -> None:
    """Read numbers as `0400` as Kubernetes does, by YAML 1.1; specs have YAML 1.2, in which that is 400."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        if isinstance(inner, dict | list):
            _read_octals(document, inner, (*path, key))
        elif isinstance(inner, int) and not isinstance(inner, bool):
            text = written_scalar(document, *path, key)
            if re.fullmatch("0[0-7]+", text):
                value[key] = int(text, 8)


def _problem_text(problem: Diagnostic) -> str:
    return f"{problem.span}: {problem.message}"


def _document_entries(document: Document) -> Iterator[GivenValue]:
    value = document.value
    if isinstance(value, dict) and isinstance(value.get("items"), list) and str(value.get("kind")).endswith("List"):
        for index, each in enumerate(value["items"]):
            # Items of a typed list (`kind: JobList`) do not repeat its kind.
            if isinstance(each, dict) and value["kind"] != "List":
                each.setdefault("kind", value["kind"].removesuffix("List"))
                each.setdefault("apiVersion", value.get("apiVersion"))
            yield _check_object(GivenValue(each, document, ("items", index)))
    else:
        yield _check_object(GivenValue(value, document))


def _check_object(given: GivenValue) -> GivenValue:
    value: Any = given.value
    place = given.span()
    if not isinstance(value, dict):
        raise ImportProblem(f"{place}: this is not a Kubernetes object", "write `apiVersion`, `kind` and `metadata`")
    for key in ("apiVersion", "kind"):
        if not isinstance(value.get(key), str) or not value[key]:
            raise ImportProblem(f"{place}: the object has no `{key}`", f"add `{key}: …`")
    if value["apiVersion"].startswith("avactl.dev/"):
        raise ImportProblem(f"{place}: this is a spec of avactl already", "leave the file out")
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        if isinstance(metadata, dict) and isinstance(metadata.get("generateName"), str):
            metadata["name"] = metadata["generateName"].rstrip("-")
        else:
            raise ImportProblem(f"{place}: the {value['kind']} has no name", "add `metadata: {name: …}`")
    for key in ("labels", "annotations"):
        if not isinstance({} if metadata.get(key) is None else metadata[key], dict):
            raise ImportProblem(f"{given.span('metadata', key)}: `{key}` is not a mapping")
    if not isinstance({} if value.get("spec") is None else value["spec"], dict):
        raise ImportProblem(f"{given.span('spec')}: `spec` is not a mapping")
    return given
