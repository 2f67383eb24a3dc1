"""Links of pages: in the repository they name files, on the site pages."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "RELEASING.md": "project/releasing.md",
    "SECURITY.md": "project/security-policy.md",
}
"""Pages of the site that are files of the repository's root."""
TEXTS = "avactl/diagnostics/texts"
DIAGNOSTICS = "reference/diagnostics.md"
_TARGET = re.compile(r"(?<=\]\()[^()\s#:]+(#[^()\s]*)?(?=\))")


def relocate(markdown: str, source: str, page: str, repository: str) -> str:
    """Return the text of a file of the repository with its links as they are on a page of the site.

    Files that are no pages are linked in the `repository`, a URL. A link that leads nowhere stays; MkDocs reports it.
    """
    here = posixpath.dirname(page)

    def replaced(match: re.Match[str]) -> str:
        path, hash_, anchor = match[0].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if target.startswith("../") or not (ROOT / target).exists():
            return match[0]
        if target == TEXTS or target.startswith(f"{TEXTS}/"):
            code = posixpath.splitext(posixpath.basename(target))[0] if target != TEXTS else ""
            return posixpath.relpath(DIAGNOSTICS, here or ".") + (f"#{code}" if code else "")
        on_site = ROOT_PAGES.get(target) or (target[len("docs/") :] if target.startswith("docs/") else "")
        if not on_site:
            form = "tree" if (ROOT / target).is_dir() else "blob"
            return f"{repository}/{form}/main/{target}{hash_}{anchor}"
        return posixpath.relpath(on_site, here or ".") + hash_ + anchor

    return _TARGET.sub(replaced, markdown)
