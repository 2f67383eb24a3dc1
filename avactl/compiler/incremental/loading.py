"""The first step of a compile with kept results: which files there are, and which are not as they were."""

from __future__ import annotations

import marshal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from avactl import parallel
from avactl.compiler.incremental.records import File, Packed, Record, pack
from avactl.compiler.incremental.tracing import Atom, KeptDocument
from avactl.compiler.selection import CONFIG_FILE
from avactl.source.tree import DirTree, Stamp, read_input

if TYPE_CHECKING:
    from avactl.diagnostics import Diagnostic
    from avactl.source.document import Document, Locator

_SLICE = 200
"""Fewest files that are worth a process of their own: about 15 ms."""
_Parsed = tuple[str, list[tuple[int, Any]], list[Packed]] | None
"""Digest, documents (index, value), problems; None: the content is as it was."""


class IrregularError(Exception):
    """Something is to be told by the plain way through the passes."""


def digest(data: bytes) -> str:
    """SHA-256."""
    return sha256(data).hexdigest()


def packed(problems: Iterable[Diagnostic]) -> list[Packed]:
    """Problems as plain data, without what may be a credential."""
    from avactl.diagnostics.secrets import redacted

    return [pack(redacted(problem)) for problem in problems]


def _trusted(stamp: Stamp | None) -> Stamp | None:
    """A stamp, unless the file changed so shortly before that it could change again and look the same.

    Where times end in whole seconds, the file system's clock may be as coarse as two (FAT).
    """
    if stamp is None:
        return None
    age = time.time_ns() - max(stamp[2], stamp[3])
    return stamp if age > (20_000_000 if stamp[2] % 1_000_000_000 else 2_000_000_000) else None


class Reading:
    """The files of a repository, against those of the last run."""

    def __init__(self, tree: DirTree, old: Record, new: Record) -> None:
        self.tree = tree
        self.old = old
        self.new = new
        self.dirty = False
        """Whether anything is to be kept that was not."""
        self._locators: dict[str, Locator] = {}
        self.parsed: dict[str, list[KeptDocument]] = {}
        """Documents of the files that are not as they were."""
        self.changed: set[Atom] = set()
        """Everything that is not as it was."""

    def configuration(self) -> tuple[list[str], list[str], str] | None:
        """What belongs to the repository, and its policies, by avactl.yaml; None where that has problems."""
        stamp = self.tree.stamp(CONFIG_FILE)
        kept = self.old.config.get(CONFIG_FILE)
        if kept is None or (stamp is not None and kept[0] != stamp) or (stamp is None and kept[1]):
            from avactl.compiler.config import load_config

            config, problems = load_config(self.tree)
            if problems:
                return None
            policies = config.model_dump_json(include={"policies"}, exclude_unset=True, by_alias=True)
            switched = policies if config.policies.model_fields_set else ""
            kept = (_trusted(stamp), stamp is not None, list(config.include), list(config.exclude), switched)
            self.dirty = True
        self.new.config[CONFIG_FILE] = kept
        return kept[2:]

    def read(self, paths: list[str], stamps: Mapping[str, Stamp]) -> None:
        """Read the files that look different. Raises IrregularError where one has an error."""
        files = self.old.files
        other = [path for path in paths if path not in files or files[path][0] != stamps[path]]
        slices = parallel.in_slices(other, lambda part: [self._parse(path, stamps[path]) for path in part], _SLICE)
        parsed = dict(zip(other, (result for part in slices for result in part), strict=True))
        failed = False
        for path in paths:
            file = files.get(path)
            if path in parsed:
                file = self._put(path, _trusted(stamps[path]), parsed[path])
                failed = failed or any(problem["severity"] == "error" for problem in file[3])
            self.new.files[path] = file  # type: ignore[assignment]
        self.dirty = self.dirty or bool(other) or bool(files.keys() - self.new.files.keys())
        if failed:
            raise IrregularError

    def _parse(self, path: str, stamp: Stamp) -> _Parsed:
        from avactl.source.yaml import MAX_BYTES, load_yaml

        data, content = b"", ""
        if stamp[1] <= MAX_BYTES:
            with suppress(OSError):
                data = self.tree.read(path)
                content = digest(data)
        if path in self.old.files and self.old.files[path][1] == content:
            return None
        if data:
            documents, problems = load_yaml(path, data)
        else:  # empty, too large, or not to be read: the loader tells
            from avactl.compiler.load import load_file

            documents, problems = load_file(self.tree, path)
        return content, [(document.index, document.value) for document in documents], packed(problems)

    def _put(self, path: str, stamp: Stamp | None, parsed: _Parsed) -> File:
        if parsed is None:
            return (stamp, *self.old.files[path][1:])
        content, documents, problems = parsed
        self.parsed[path] = [
            KeptDocument(path, index, marshal.dumps(value), self.locator, value) for index, value in documents
        ]
        return (stamp, content, (), tuple(problems))

    def documents(self) -> Sequence[Document]:
        """All documents in the order of the files."""
        found: list[Document] = []
        for path, (_, _, docs, _) in self.new.files.items():
            if path in self.parsed:
                found += self.parsed[path]
            else:
                found += [KeptDocument(path, at, value, self.locator) for at, _, value in docs]
        return found

    def look_at_inputs(self) -> None:
        """Other files that were read, such as manifests of datasets."""
        for path, (stamp, content) in self.old.inputs.items():
            now = self.tree.stamp(path)
            if now != stamp or (now is None) != (content is None):
                self.input(path)
                self.dirty = True
                if self.new.inputs[path][1] != content:
                    self.changed.add(("", path))
            else:
                self.new.inputs[path] = (stamp, content)

    def input(self, path: str) -> bytes | None:
        """The content of another file, which from now on is watched; None if there is none."""
        stamp = self.tree.stamp(path)
        data = read_input(self.tree, path)
        if data is None:
            self.new.inputs[path] = (None, None)
            return None
        self.new.inputs[path] = (_trusted(stamp), digest(data))
        return data

    def locator(self, path: str) -> Locator:
        """What finds the places of a spec file's values."""
        from avactl.source.yaml import YamlLocator, decode

        found = self._locators.get(path)
        if found is None:
            found = self._locators[path] = YamlLocator(path, decode(path, self.tree.read(path))[0])
        return found
