"""MkDocs hooks: generated pages, pages of the repository's root, and links between all of them."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from avactl.program.explain.explain import REPOSITORY_URL
from tools.site.links import ROOT, ROOT_PAGES, relocate
from tools.site.reference import KINDS, kind_pages, reference_pages

_ON_SITE = {page: source for source, page in ROOT_PAGES.items()}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Begin the navigation of the reference with the kinds."""
    (reference,) = (section["Reference"] for section in config.nav or () if "Reference" in section)
    reference.insert(0, {"Kinds": [KINDS, *kind_pages()]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs/`."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in ROOT_PAGES.items()}
    for path, text in (pages | reference_pages(REPOSITORY_URL)).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of pages that are files of the repository."""
    path = page.file.src_uri
    if path.startswith("reference/"):
        return markdown
    return relocate(markdown, _ON_SITE.get(path, f"docs/{path}"), path, REPOSITORY_URL)
