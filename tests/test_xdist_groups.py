"""Tests with one `xdist_group` run in one process: their clusters are started once, and in the order of the file."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT

pytest_plugins = ("pytester",)
NOTED = """
    import os, pytest, time

    def note(file):
        time.sleep(0.1)
        with open(file, "a") as workers:
            print(os.environ["PYTEST_XDIST_WORKER"], file=workers)
"""


def test_groups_hold(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makepyfile(
        test_marked=f"""{NOTED}
    pytestmark = pytest.mark.xdist_group("one")

    @pytest.mark.parametrize("number", range(6))
    def test_here(number):
        note("marked")
        """,
        test_fixture=f"""{NOTED}
    @pytest.fixture(scope="module")
    def cluster():
        note("clusters")

    @pytest.fixture
    def client(cluster):
        pass

    @pytest.mark.parametrize("number", range(6))
    def test_here(number, client):
        time.sleep(0.3)  # so long that the other worker would take some of them
        """,
    )
    pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup").assert_outcomes(passed=12)
    assert len(set((pytester.path / "marked").read_text().split())) == 1
    assert len((pytester.path / "clusters").read_text().split()) == 1


def test_long_groups_begin_and_single_tests_end(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    package = pytester.mkpydir("serving")
    (package / "conftest.py").write_text("import pytest\n@pytest.fixture(scope='package')\ndef plane(): pass\n")
    (package / "test_b.py").write_text("def test_single(): pass\ndef test_of_package(plane): pass\n")
    pytester.makepyfile(
        test_a="""
    import pytest

    def test_single(): pass

    @pytest.mark.xdist_group("engine")
    def test_with_a_long_build(): pass

    @pytest.mark.xdist_group("small")
    def test_small(): pass

    @pytest.mark.xdist_group("scheduler")
    def test_long(): pass
        """
    )
    lines = pytester.runpytest_subprocess("--collect-only", "-q", "-n", "0").outlines
    names = [line.partition("::")[2].partition("@")[0] for line in lines if "::" in line]
    groups = ["test_long", "test_of_package", "test_small", "test_with_a_long_build"]
    assert names == [*groups, "test_single", "test_single"]
