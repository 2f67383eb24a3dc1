"""Step one of an incremental compile: find the files of the repository, and parse those that changed."""

from __future__ import annotations

import marshal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from avactl.base import parallel
from avactl.compiler.incremental.layering import Layers
from avactl.compiler.incremental.records import (
    ConfigRecord,
    FileRecord,
    InputRecord,
    KeptRecord,
    PackedDiagnostic,
    pack,
)
from avactl.compiler.incremental.tracing import Dependency, FileContent, KeptDocument
from avactl.compiler.selection import CONFIG_FILE
from avactl.spec.repository.tree import DirTree, Stamp, read_input

if TYPE_CHECKING:
    from avactl.diagnostics import Diagnostic
    from avactl.spec.documents.document import Document, Locator
    from avactl.spec.schema.base import Resource

_SLICE = 200
"""Fewest files that are worth a process of their own: about 15 ms."""


class _ParsedFile(NamedTuple):
    """The content of a file."""

    digest: str
    documents: list[tuple[int, Any]]
    """Index and value."""
    problems: list[PackedDiagnostic]


class IrregularError(Exception):
    """The repository needs a full compile: it has an error, or uses a feature without incremental support."""


def digest(data: bytes) -> str:
    """Return the SHA-256 of data in hexadecimal."""
    return sha256(data).hexdigest()


def packed(problems: Iterable[Diagnostic]) -> list[PackedDiagnostic]:
    """Return problems as plain data, with possible credentials redacted."""
    from avactl.diagnostics.redaction import redact_diagnostic

    return [pack(redact_diagnostic(problem)) for problem in problems]


def _trusted(stamp: Stamp | None) -> Stamp | None:
    """Return the stamp, or None if the file changed so recently that another change could leave the same stamp.

    Where times end in whole seconds, the file system's clock may be as coarse as two (FAT).
    """
    if stamp is None:
        return None
    age = time.time_ns() - max(stamp[2], stamp[3])
    return stamp if age > (20_000_000 if stamp[2] % 1_000_000_000 else 2_000_000_000) else None


class Loader:
    """The files of a repository, compared with those of the last run."""

    def __init__(self, tree: DirTree, old: KeptRecord, new: KeptRecord) -> None:
        self.tree = tree
        self.old = old
        self.new = new
        self.dirty = False
        """True if the record differs from the last one, although no dependency has changed."""
        self.layers = Layers(tree, new.files, self.locator, ())
        self.layered_anew = False
        """True if a template, defaults or an overlay may differ from that of the last run."""
        self._locators: dict[str, Locator] = {}
        self.parsed: dict[str, list[KeptDocument]] = {}
        """Documents of new and changed files."""
        self.changed: set[Dependency] = set()
        """Dependencies that are not as in the last run."""

    def configuration(self) -> ConfigRecord | None:
        """Return the settings of avactl.yaml; None if it has problems."""
        stamp = self.tree.stamp(CONFIG_FILE)
        kept = self.old.config.get(CONFIG_FILE)
        if kept is None or (stamp is not None and kept.stamp != stamp) or (stamp is None and kept.exists):
            from avactl.compiler.config import environment_paths, load_config, unknown_environment
            from avactl.policy.owners import as_json

            config, problems = load_config(self.tree)
            if problems or unknown_environment(self.tree, config):
                return None
            wanted = environment_paths(config, self.tree.environment)
            every = config.environments.values()
            policies = config.model_dump_json(include={"policies"}, exclude_unset=True, by_alias=True)
            switched = policies if config.policies.model_fields_set else ""
            owners = as_json(tuple(config.owners or ()))
            if kept is None or owners != kept.owners or wanted.overlays != kept.overlays:
                self.old.clear()
            kept = ConfigRecord(
                _trusted(stamp),
                stamp is not None,
                list(wanted.include),
                list(config.exclude),
                switched,
                owners,
                list(wanted.overlays),
                list(wanted.exclude),
                [*config.include, *(path for each in every for path in (*each.include, *each.overlays))],
            )
            self.dirty = True
        self.new.config[CONFIG_FILE] = kept
        return kept

    def not_owned(self) -> Callable[[Document, Resource], object]:
        """Return the check that the `owners` of avactl.yaml let a file declare a spec: true if they do not."""
        text = self.new.config[CONFIG_FILE].owners
        if not text:
            return lambda doc, spec: None
        from avactl.policy.owners import from_json, ownership_problem

        return partial(ownership_problem, (from_json(text),))

    def read(self, specs: list[str], overlays: list[str], stamps: Mapping[str, Stamp]) -> None:
        """Read the files whose stamp has changed. Raises IrregularError if one has an error.

        If a template, defaults or an overlay changed, the specs that may inherit from it are read again, too.
        """
        self.layers = Layers(self.tree, self.new.files, self.locator, overlays)
        self._read([*specs, *overlays], stamps)
        if self.old.files and self.layers.touched(self.old.files, self.parsed):
            self.layered_anew = True
            again = self.layers.affected(self.old.files, self.parsed)
            if again is None:
                self.old.clear()
                self.parsed.clear()
                self.new.files.clear()
                self._read([*specs, *overlays], stamps)
            else:
                self._read(again, stamps, anew=True)

    def _read(self, paths: list[str], stamps: Mapping[str, Stamp], *, anew: bool = False) -> None:
        """Read files; with `anew`, also those that are as in the last run."""
        files = self.old.files
        other = [path for path in paths if anew or path not in files or files[path].stamp != stamps[path]]
        slices = parallel.in_slices(
            other, lambda part: [self._parse(path, stamps[path], anew) for path in part], _SLICE
        )
        results = (result and _ParsedFile._make(result) for part in slices for result in part)
        parsed = dict(zip(other, results, strict=True))
        failed = False
        for path in paths:
            file = files.get(path)
            if path in parsed:
                file = self._put(path, _trusted(stamps[path]), parsed[path])
                failed = failed or any(problem["severity"] == "error" for problem in file.warnings)
            self.new.files[path] = file  # type: ignore[assignment]
        self.dirty = self.dirty or bool(other) or (not anew and bool(files.keys() - self.new.files.keys()))
        if failed:
            raise IrregularError

    def _parse(self, path: str, stamp: Stamp, anew: bool) -> tuple[Any, ...] | None:
        """Return the fields of a `_ParsedFile` as plain data, for other processes; None for unchanged content, unless
        it is read `anew`."""
        from avactl.spec.documents.yaml import MAX_BYTES, load_yaml

        data, content = b"", ""
        if stamp[1] <= MAX_BYTES:
            with suppress(OSError):
                data = self.tree.read(path)
                content = digest(data)
        if not anew and path in self.old.files and self.old.files[path].digest == content:
            return None
        if data:
            documents, problems = load_yaml(path, data)
        else:  # empty, too large or unreadable: the pass reports it
            from avactl.compiler.load import load_file

            documents, problems = load_file(self.tree, path)
        return content, [(each.index, each.value) for each in documents], packed(problems)

    def _put(self, path: str, stamp: Stamp | None, parsed: _ParsedFile | None) -> FileRecord:
        if parsed is None:
            return self.old.files[path]._replace(stamp=stamp)
        content, documents, problems = parsed
        found = [KeptDocument(path, index, marshal.dumps(value), self.locator, value) for index, value in documents]
        layers = self.layers.among(path, found)
        self.parsed[path] = [each for each in found if each not in layers] if layers else found
        return FileRecord(stamp, content, (), tuple(problems), tuple((each.index, each.data) for each in layers))

    def documents(self) -> Sequence[Document]:
        """Return all documents in the order of the files."""
        found: list[Document] = []
        for path, file in self.new.files.items():
            if path in self.parsed:
                found += self.parsed[path]
            else:
                found += [KeptDocument(path, each.position, each.data, self.locator) for each in file.documents]
        return found

    def compare_inputs(self) -> None:
        """Find changes of the files that specs reference, such as dataset manifests."""
        for path, kept in self.old.inputs.items():
            now = self.tree.stamp(path)
            if now != kept.stamp or (now is None) != (kept.digest is None):
                self.input(path)
                self.dirty = True
                if self.new.inputs[path].digest != kept.digest:
                    self.changed.add(FileContent(path))
            else:
                self.new.inputs[path] = kept

    def input(self, path: str) -> bytes | None:
        """Return the content of a file that a spec references, or None, and record the file."""
        stamp = self.tree.stamp(path)
        data = read_input(self.tree, path)
        if data is None:
            self.new.inputs[path] = InputRecord(None, None)
            return None
        self.new.inputs[path] = InputRecord(_trusted(stamp), digest(data))
        return data

    def locator(self, path: str) -> Locator:
        """Return the locator of a spec file."""
        from avactl.spec.documents.yaml import YamlLocator, decode

        found = self._locators.get(path)
        if found is None:
            found = self._locators[path] = YamlLocator(path, decode(path, self.tree.read(path))[0])
        return found
