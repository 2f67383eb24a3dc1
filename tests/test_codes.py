"""Codes are public API: the codes that the package emits, the table, their texts and the tests are one set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from avactl.diagnostics.codes import CODES
from avactl.program.explain.explain import REPOSITORY_URL, explain_text

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*").fullmatch
PRINTED = re.compile(r"^(?:error|warning)\[([a-z0-9-]+)(?:/[^\]]*)?\]: ", re.MULTILINE).findall
TEXTS = ROOT / "avactl" / "diagnostics" / "texts"

TESTED = {
    "file-too-large": "source/test_yaml.py::test_a_file_that_is_too_large_is_not_even_read",
    "beyond-limits": "compiler/test_beyond_limits.py::test_what_no_daemon_would_read_is_not_compiled",
    "checkout-differs": "source/test_checkout.py::test_files_that_a_step_of_the_pipeline_changed",
    "file-not-read": "cli/test_validate.py::test_files_that_are_not_read_are_named",
    "internal-error": "test_defect.py::test_a_defect_is_told_at_the_spec",
    "shared-checkpoint": "kinds/test_training_checkpoints.py::test_jobs_with_one_checkpoint_directory",
    "layer-too-large": "compiler/test_environments.py::test_the_size_of_defaults_is_bounded",
    "manifest-too-large": "kinds/test_dataset.py::test_a_list_that_is_too_long_stays_in_the_store",
    "missing-revision": "cli/test_validate.py::test_commits_that_the_git_server_does_not_have",
    "object-changed": "datasets/test_verify.py::test_a_version_that_changed",
    "object-missing": "datasets/test_verify.py::test_a_version_that_changed",
    "object-unlisted": "datasets/test_verify.py::test_a_version_that_changed",
    "policy-timeout": "policy/test_own.py::test_an_endless_policy_ends",
    "python-error": "source/test_python.py::test_an_exception_is_told_at_the_files_own_line",
    "python-not-confined": "source/test_answers.py::test_a_file_that_cannot_be_confined_is_not_evaluated",
    "too-many-volumes": "kinds/test_cache_tier.py::test_volumes_that_no_list_can_hold_are_refused",
    "security-setting": "policy/test_owners.py::test_changed_settings_are_in_diff_and_comment",
    "python-timeout": "source/test_python.py::test_a_file_without_an_end_is_stopped",
}
"""Tests of the codes that no golden file shows: those that need a large file, a defect, Python or time."""


class UnknownCodeError(Exception):
    """The code of a diagnostic cannot be read from the source."""


def _constants(tree: ast.Module) -> dict[str, set[str]]:
    """Names of a module with the texts that are assigned to them, in any scope; `A, B = "a", "b"` too."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                if isinstance(name, ast.Name) and (texts := _texts(value, {})):
                    found.setdefault(name.id, set()).update(texts)
    return found


def _texts(value: ast.expr, constants: dict[str, set[str]]) -> set[str]:
    """The texts that an expression may be: a literal, a name of one, or either side of a condition."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return {value.value}
    if isinstance(value, ast.Name):
        return constants.get(value.id, set())
    if isinstance(value, ast.IfExp):
        return _texts(value.body, constants) | _texts(value.orelse, constants)
    return set()


def _emitted_codes(source: str) -> Iterator[str]:
    """Codes of the diagnostics that a module makes: the first argument of `Diagnostic(…)`, or its `code=…`."""
    tree = ast.parse(source)
    constants = _constants(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Diagnostic"):
            continue
        given = node.args[:1] or [keyword.value for keyword in node.keywords if keyword.arg in ("code", None)]
        if not given or not (codes := _texts(given[0], constants)):
            raise UnknownCodeError(f"line {node.lineno}: {ast.unparse(node)}")
        yield from codes


RESTORED = "avactl/compiler/incremental/records.py"
"""Reads diagnostics back from the compiler's cache, with the codes that they had."""


def _package() -> dict[str, str]:
    """Every code that the package emits, and a file that does."""
    emitted: dict[str, str] = {}
    for file in sorted((ROOT / "avactl").rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        if name == RESTORED:
            continue
        for code in _emitted_codes(file.read_text(encoding="utf-8")):
            emitted.setdefault(code, name)
    return emitted


def _golden() -> set[str]:
    """The codes that golden outputs show, of diagnostics that the tests of these outputs print anew."""
    outputs = [*(GOLDEN / "invalid").glob("*/*__invalid.txt"), *(GOLDEN / "topo" / "damaged").glob("*.err")]
    return {code for path in outputs for code in PRINTED(path.read_text(encoding="utf-8"))}


def _asserted(test: str) -> set[str]:
    """The texts that stand in the assertions or in the parameters of one test."""
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    places = [*function.decorator_list, *(node for node in ast.walk(function) if isinstance(node, ast.Assert))]
    leaves = [leaf.value for place in places for leaf in ast.walk(place) if isinstance(leaf, ast.Constant)]
    return {leaf for leaf in leaves if isinstance(leaf, str)}


def test_the_package_emits_exactly_the_codes_of_the_table() -> None:
    emitted = _package()
    assert {code: file for code, file in emitted.items() if code not in CODES} == {}
    assert sorted(set(CODES) - set(emitted)) == []


def test_only_the_code_of_a_diagnostic_is_a_use() -> None:
    source = """
OTHER, _CODE = "crlf", "yaml-tag"
Diagnostic(_CODE, "policy", span, hint="empty-file")
Diagnostic(message="x", code="yaml-tab" if tab else "yaml-key")
hidden["policy"] = [p for p in problems if p.code != "no-specs"]
rule("yaml-depth"); Note(code="yaml-syntax")
"""
    assert sorted(_emitted_codes(source)) == ["yaml-key", "yaml-tab", "yaml-tag"]


@pytest.mark.parametrize("call", ["Diagnostic(code, m)", "Diagnostic(f'x-{y}', m)", "Diagnostic(**x)", "Diagnostic()"])
def test_a_code_that_cannot_be_read_from_the_source_is_refused(call: str) -> None:
    with pytest.raises(UnknownCodeError, match="line 1"):
        list(_emitted_codes(call))


def test_every_code_is_tested() -> None:
    golden = _golden()
    assert sorted(set(CODES) - golden - set(TESTED)) == []
    assert sorted(golden & set(TESTED)) == [], "a golden file is enough"
    assert {code: test for code, test in TESTED.items() if code not in _asserted(test)} == {}


def test_every_code_has_one_text() -> None:
    assert sorted(path.name for path in TEXTS.iterdir()) == sorted(f"{code}.md" for code in CODES)


def test_a_text_has_its_code_as_its_only_heading() -> None:
    for code in CODES:
        heading, blank, first, *_ = (TEXTS / f"{code}.md").read_text(encoding="utf-8").splitlines()
        assert (heading, blank) == (f"# {code}", "")
        assert first
        assert not first.startswith("#"), code


def test_explain_prints_the_text_of_a_code() -> None:
    printed = explain_text("not-owner")
    assert printed.startswith(f"not-owner\n  {CODES['not-owner']}\n\n  ")
    assert f"[security.md]({REPOSITORY_URL}/blob/main/docs/security.md#teams-in-git)" in printed
    assert "# not-owner" not in printed


def test_links_of_texts_are_urls_of_files_of_the_repository() -> None:
    links = [link for code in CODES for link in re.findall(r"\]\(([^)]*)\)", explain_text(code))]
    assert links
    for link in links:
        file = link.removeprefix(f"{REPOSITORY_URL}/blob/main/").partition("#")[0]
        assert file != link, link
        assert (ROOT / file).is_file(), link


def test_codes_and_meanings_have_their_form() -> None:
    assert CODES
    for code, meaning in CODES.items():
        assert CODE(code), code
        assert meaning.endswith((".", "…")), code
        assert meaning[0].isupper() or not meaning[0].isalpha(), code
