"""Templates of files that come with the package."""

from __future__ import annotations

from importlib.resources.abc import Traversable


def read_files(directory: Traversable, prefix: str = "") -> dict[str, bytes]:
    """Return the files below a directory by path; a leading `dot-` of a name becomes a dot."""
    files: dict[str, bytes] = {}
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name):
        name = "." + entry.name.removeprefix("dot-") if entry.name.startswith("dot-") else entry.name
        if entry.name == "__pycache__":
            continue
        if entry.is_dir():
            files |= read_files(entry, f"{prefix}{name}/")
        else:
            files[prefix + name] = entry.read_bytes()
    return files


def substitute(text: str, old: str, new: str) -> str:
    """Return the text with a part replaced wherever it is. Raises LookupError if the template lacks it."""
    if old not in text:
        raise LookupError(f"the template has no {old!r}")
    return text.replace(old, new)
