"""Queries of manifests, snapshots of a query, and labels that are written back."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from tests.cli.running import Run
from tests.datasets.conftest import lines, manifest


def entries(count: int = 20) -> list[dict[str, object]]:
    return [
        {
            "url": f"s3://data/v1/{'train' if number % 4 else 'val'}/{number:03}.jpg",
            "size": 100 + number,
            "labels": {"class": ("cat", "dog")[number % 2], "score": number / 10, "size": "L"},
            "extra": "kept",
        }
        for number in range(count)
    ]


def run(avactl: Run, *args: str) -> str:
    done = avactl("dataset", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(avactl: Run, *args: str, code: int = 2) -> str:
    done = avactl("dataset", *args)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stderr


def test_query(tmp_path: Path, avactl: Run) -> None:
    manifest(tmp_path / "v1.jsonl", *entries())
    told = run(
        avactl, "query", "v1.jsonl", "SELECT class, count(*) AS n, max(score) FROM objects GROUP BY 1 ORDER BY 1"
    )
    assert told == "class,n,max(score)\ncat,10,1.8\ndog,10,1.9\n"
    told = run(avactl, "query", "v1.jsonl", "--where", "path LIKE 'val/%' AND size < 105")
    assert [line.partition(",")[0] for line in told.splitlines()[1:]] == [
        "s3://data/v1/val/000.jpg",
        "s3://data/v1/val/004.jpg",
    ]
    # A label with the name of a column is in `labels` only.
    told = run(avactl, "query", "v1.jsonl", "SELECT DISTINCT labels->>'size' AS s FROM objects")
    assert told == "s\nL\n"
    manifest(tmp_path / "v0.jsonl", *entries(5))
    sql = "SELECT count(*) AS n FROM objects ANTI JOIN before USING (url)"
    assert run(avactl, "query", "v1.jsonl", sql, "--table", "before=v0.jsonl") == "n\n15\n"


def test_a_query_becomes_a_version(tmp_path: Path, avactl: Run) -> None:
    manifest(tmp_path / "v1.jsonl", *entries())
    done = avactl("dataset", "query", "v1.jsonl", "--where", "class = 'cat' AND score > 0.9", "--snapshot", "v2.jsonl")
    assert done.returncode == 0, done.stderr
    found = lines(tmp_path / "v2.jsonl")
    assert found == [each for each in entries() if each["labels"]["class"] == "cat" and each["labels"]["score"] > 0.9]  # type: ignore[index]
    assert hashlib.sha256((tmp_path / "v2.jsonl").read_bytes()).hexdigest() in done.stderr
    assert done.stdout == ""
    assert "found no objects" in refused(
        avactl, "query", "v1.jsonl", "--where", "class = 'eel'", "--snapshot", "v3.jsonl", code=1
    )
    assert not (tmp_path / "v3.jsonl").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("query", "v1.jsonl", "SELECT url FROM objects LIMIT 3", "--snapshot", "v1.jsonl"),
        ("query", "v1.jsonl", "SELECT url FROM objects", "-o", "./v1.jsonl"),
        ("query", "v1.jsonl", "SELECT url FROM other", "--table", "other=v0.jsonl", "-o", "v0.jsonl"),
        ("label", "v1.jsonl", "new.csv", "--out", "v1.jsonl"),
    ],
)
def test_a_version_is_not_overwritten(tmp_path: Path, avactl: Run, words: tuple[str, ...]) -> None:
    for name in ("v0.jsonl", "v1.jsonl"):
        manifest(tmp_path / name, *entries())
    (tmp_path / "new.csv").write_text("path,class\nval/000.jpg,eel\n")
    before = (tmp_path / "v1.jsonl").read_bytes()
    assert "is also what is read" in refused(avactl, *words, code=2)
    assert (tmp_path / "v0.jsonl").read_bytes() == (tmp_path / "v1.jsonl").read_bytes() == before


def test_labels_are_written_back(tmp_path: Path, avactl: Run) -> None:
    manifest(tmp_path / "v1.jsonl", *entries())
    sql = "SELECT url, 'wolf' AS class, true AS checked FROM objects WHERE class = 'dog' AND score > 1.5"
    run(avactl, "query", "v1.jsonl", sql, "-o", "new.jsonl")
    told = run(avactl, "label", "v1.jsonl", "new.jsonl", "-o", "v2.jsonl")
    assert "v2.jsonl: 20 objects, 2 with other labels" in told
    for before, after in zip(entries(), lines(tmp_path / "v2.jsonl"), strict=True):
        labels: Any = dict(before["labels"])  # type: ignore[call-overload]
        if labels["class"] == "dog" and labels["score"] > 1.5:
            labels |= {"class": "wolf", "checked": True}
        assert after == {**before, "labels": labels}
    (tmp_path / "c.csv").write_text('path,class,score\nval/000.jpg,"a, b",\n')
    run(avactl, "label", "v1.jsonl", "c.csv", "-o", "v3.jsonl")
    assert lines(tmp_path / "v3.jsonl")[0]["labels"] == {"class": "a, b", "score": 0.0, "size": "L"}
    (tmp_path / "d.jsonl").write_text('{"path": "val/000.jpg", "labels": {"class": null}}\n')
    run(avactl, "label", "v1.jsonl", "d.jsonl", "-o", "v4.jsonl")
    assert lines(tmp_path / "v4.jsonl")[0]["labels"] == {"score": 0.0, "size": "L"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "path,class\nnone.jpg,cat\n", "1 row of a.csv are of no object"),
        ("b.csv", "path,class\nval/000.jpg,cat\nval/000.jpg,dog\n", "b.csv:3: other labels for val/000.jpg"),
        ("c.csv", "path,class\nval/000.jpg,a,b\n", "c.csv:2: the row has other columns"),
        ("d.csv", "class\ncat\n", "d.csv:1: no column is `url` or `path`, but: class"),
        ("d.csv", "path;class\nval/000.jpg;cat\n", "d.csv:1: no column is `url` or `path`, but: path;class"),
        ("d.csv", "path,class,class\nval/000.jpg,cat,dog\n", "d.csv:1: the column class is there twice"),
        ("e.csv", "path,size\nval/000.jpg,3\n", "`size` is no label"),
        ("e.jsonl", '{"path": "val/000.jpg", "labels": {"url": "s3://data/v1/val/001.jpg"}}\n', "`url` is no label"),
        ("e.jsonl", '{"path": "val/000.jpg", "labels": {"size": 3}}\n', "`size` is no label"),
        ("e.jsonl", '{"path": "val/000.jpg", "class": "a", "labels": {"class": "b"}}\n', "class is there twice"),
        ("e.jsonl", f'{{"path": "val/000.jpg", "class": {"[" * 300}{"]" * 300}}}\n', "more than 50 lists"),
        ("e.csv", f"path,a,b\nval/000.jpg,{'x' * 40_000},{'y' * 40_000}\n", "is longer than 64 KiB"),
        ("f.jsonl", "[]\n", "is not a JSON object"),
        ("g.jsonl", "{\n", "g.jsonl: "),
        ("h.csv", "", "h.csv has no rows"),
    ],
)
def test_bad_labels(tmp_path: Path, avactl: Run, name: str, content: str, message: str) -> None:
    manifest(tmp_path / "v1.jsonl", *entries())
    (tmp_path / name).write_text(content)
    assert message in refused(avactl, "label", "v1.jsonl", name, "-o", "v2.jsonl", code=1)
    assert not (tmp_path / "v2.jsonl").exists()


def test_parquet(tmp_path: Path, avactl: Run) -> None:
    manifest(tmp_path / "v1.jsonl", *entries())
    run(avactl, "query", "v1.jsonl", "SELECT url, class, score FROM objects; ", "-o", "v1.parquet")
    found = duckdb.execute("SELECT count(*), sum(score) FROM read_parquet(?)", [f"{tmp_path}/v1.parquet"]).fetchall()
    assert found == [(20, pytest.approx(19.0))]
    run(avactl, "query", "v1.jsonl", "SELECT url FROM objects LIMIT 3", "-o", "v1.parquet")
    assert duckdb.execute("SELECT count(*) FROM read_parquet(?)", [f"{tmp_path}/v1.parquet"]).fetchall() == [(3,)]
    refused(avactl, "query", "v1.jsonl", "SELECT no FROM objects", "-o", "v1.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1.jsonl", "v1.parquet"]
    told = refused(avactl, "query", "v1.jsonl", "SELECT 1", "-o", "none/v1.parquet", code=3)
    assert "none/v1.parquet: no such file or directory" in told
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "out").symlink_to("/tmp")
    told = refused(avactl, "query", "v1.jsonl", "SELECT url FROM objects", "-o", "out/v1.parquet", code=3)
    assert "is a symbolic link" in told


@pytest.mark.parametrize(
    ("condition", "hint"),
    [
        ('class = "cat"', "texts are in single quotes"),
        ("class = 'cat' AND (", "correct the SQL: https://duckdb.org"),
        ("CAST(class AS INT) > 1", "TRY_CAST"),
        ("url IN (SELECT url FROM 'v0.jsonl')", "by `--table NAME=MANIFEST`"),
    ],
)
def test_hints_of_sql(tmp_path: Path, avactl: Run, condition: str, hint: str) -> None:
    manifest(tmp_path / "v1.jsonl", *entries())
    assert hint in refused(avactl, "query", "v1.jsonl", "--where", condition)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM 'http://127.0.0.1:1/x.parquet'",
        "COPY (SELECT 1) TO 'x.csv'",
        "COPY objects TO 'x.parquet'",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA database_list",
        "EXPORT DATABASE 'x'",
        "CREATE TABLE x AS SELECT 1",
        "DELETE FROM objects",
        "SELECT 1; SELECT 2",
        "SELECT * FROM limits",
        "SELECT * FROM tables",
        "SELECT FROM",
        "",
    ],
)
def test_sql_reads_its_tables_only(tmp_path: Path, avactl: Run, sql: str) -> None:
    manifest(tmp_path / "v1.jsonl", *entries())
    before = sorted(tmp_path.iterdir())
    told = refused(avactl, "query", "v1.jsonl", sql)
    assert "root:" not in told
    assert sorted(tmp_path.iterdir()) == before


def test_limits(tmp_path: Path, avactl: Run) -> None:
    manifest(tmp_path / "v1.jsonl", *entries())
    told = refused(avactl, "query", "v1.jsonl", "SELECT count(*) FROM range(1000000000000)", "--timeout", "1s", code=1)
    assert "takes more than 1 s" in told
    huge = "SELECT list(range) FROM range(100000000)"
    assert "needs more than 100MB" in refused(avactl, "query", "v1.jsonl", huge, "--memory", "100MB", code=1)
    assert "--memory lots" in refused(avactl, "query", "v1.jsonl", "SELECT 1", "--memory", "lots")
    assert "leaves no time" in refused(avactl, "query", "v1.jsonl", "SELECT 1", "--timeout", "0s")
    assert "not a duration" in refused(avactl, "query", "v1.jsonl", "SELECT 1", "--timeout", "soon")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"size": 2**63}, "the `size` of line 1 is not a number of bytes"),
        ({"records": 2**63}, "the `records` of line 1 are not a number"),
        ({"size": orjson.Fragment("[" * 300 + "]" * 300)}, "the `size` of line 1 is not a number of bytes"),
        ({"labels": {"a": orjson.Fragment("[" * 300 + "]" * 300)}}, "the `labels` of line 1 have more than 50 lists"),
    ],
)
def test_values_that_no_object_has(tmp_path: Path, avactl: Run, facts: dict[str, object], message: str) -> None:
    (tmp_path / "v1.jsonl").write_bytes(orjson.dumps({"url": "s3://d/1", **facts}) + b"\n")
    assert message in refused(avactl, "query", "v1.jsonl", "SELECT 1", code=1)


def test_odd_labels(tmp_path: Path, avactl: Run) -> None:
    manifest(
        tmp_path / "v1.jsonl",
        {"url": "s3://d/1", "labels": {"a'b\"c": 1, "Class": "x", "class": "y", "n": 1e30, "": 3, "l": [1], "m": 1}},
        {"url": "s3://d/2", "labels": {"a'b\"c": "t", "n": 0.5, "m": None}},
    )
    told = run(avactl, "query", "v1.jsonl", """SELECT "a'b""c" AS a, "Class" AS c, n > 1 AS big, m FROM objects""")
    assert told == 'a,c,big,m\n1,x,True,1\n"""t""",,False,\n'


def test_without_duckdb(tmp_path: Path, avactl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest(tmp_path / "v1.jsonl", *entries())
    monkeypatch.setattr("avactl.datasets.query.database.find_spec", lambda name: None)
    told = refused(avactl, "query", "v1.jsonl", "SELECT 1", code=3)
    assert "queries require the package duckdb" in told
    assert "[query]" in told
    assert sys.modules  # the command line itself does not need it
