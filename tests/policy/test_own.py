"""A repository's own policies: JSON Schema and Python, where they point, and what becomes of broken ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from avactl.compiler import compile_tree
from avactl.diagnostics import Diagnostic
from avactl.spec.repository.tree import MemoryTree
from tests.cli.running import Run
from tests.diff.sides import HEAD, PLATFORM, job, workspace

SPECS = HEAD + job(retries=7) + "\n---\n" + HEAD + workspace()
IMPORT = "from avactl.policy import policy, problem\n\n"


def compiled(files: dict[str, str], config: str = "python: {allow: true, timeout: 20s}") -> list[Diagnostic]:
    tree = MemoryTree({"avactl.yaml": config + "\n", "platform.yaml": PLATFORM, "specs.yaml": SPECS, **files})
    return list(compile_tree(tree).diagnostics)


def python(text: str, config: str = "python: {allow: true, timeout: 20s}") -> list[Diagnostic]:
    return compiled({"policies/p.py": IMPORT + text}, config)


def schema(text: str) -> list[Diagnostic]:
    return compiled({"policies/p.yaml": f"policy: few-retries\n{text}\n"}, "{}")


def the(found: list[Diagnostic]) -> Diagnostic:
    assert len(found) == 1, found
    return found[0]


# -- JSON Schema -----------------------------------------------------------------------------------------------------


def test_a_schema_points_at_the_value() -> None:
    found = the(
        schema(
            "kinds: [TrainingJob]\nhelp: at most 5\nschema: {properties: {spec: {properties: {retries: {maximum: 5}}}}}"
        )
    )
    assert (found.id, found.severity, found.hint) == ("policy/few-retries", "error", "at most 5")
    assert found.message == "spec.retries: 7 is greater than the maximum of 5"
    line = SPECS.split("\n")[found.span.line - 1]
    assert line[found.span.column - 1 : found.span.end_column - 1] == "7"


def test_a_schema_sees_defaults_and_not_what_is_not_set() -> None:
    assert schema("kinds: [TrainingJob]\nschema: {properties: {spec: {required: [priority, preemptible]}}}") == []
    found = the(schema("kinds: [TrainingJob]\nseverity: warning\nschema: {properties: {spec: {required: [timeout]}}}"))
    assert (found.severity, found.message) == ("warning", "spec: 'timeout' is a required property")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "p.yaml",
            "policy: short\nkinds: [TrainingJob]\nschema: {properties: {spec: {properties: {timeout: {const: 1h}}}}}",
        ),
        (
            "p.py",
            f"{IMPORT}@policy('short', kinds=['TrainingJob'])\ndef short(spec):\n"
            "    if spec['spec'].get('timeout') != '1h':\n        yield problem('too long', 'spec', 'timeout')\n",
        ),
    ],
)
def test_the_job_inside_a_pipeline_is_a_job(file: str, text: str) -> None:
    root = Path(__file__).resolve().parents[2] / "examples" / "pipelines"
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.yaml")}
    files["avactl.yaml"] = files.get("avactl.yaml", b"") + b"\npython: {allow: true, timeout: 20s}\n"
    found = compile_tree(MemoryTree({**files, f"policies/{file}": text.encode()})).diagnostics
    places = {(d.span.file, files[d.span.file].decode().split("\n")[d.span.line - 1].strip()) for d in found}
    assert ("teams/nightly.yaml", "timeout: 4h") in places
    assert {d.id for d in found} == {"policy/short"}


def test_a_schema_over_objects() -> None:
    text = "over: manifests\nkinds: [Job]\nschema: {properties: {spec: {properties: {completions: {enum: [1, 3]}}}}}"
    found = the(schema(text))
    assert found.message == "2 is not one of [1, 3] (Job vision/j-worker: spec.completions)"
    assert found.span.file == "specs.yaml"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("schema: {type: objekt}", "policy-error", "'objekt' is not valid under any of the given schemas"),
        (
            "schema: {propertis: {spec: {required: [foo]}}}",
            "policy-error",
            "`propertis` is no keyword of JSON Schema: did you mean `properties`?",
        ),
        ("schema: {properties: {spec: {anyOf: [{}, {requires: [foo]}]}}}", "policy-error", "did you mean `required`?"),
        ("schema: {properties: {specs: {}}}", "policy-error", "no spec that it checks has `specs` here"),
        (
            "kinds: [TrainingJob]\nschema: {properties: {spec: {anyOf: [{properties: {worker: {}}}]}}}",
            "policy-error",
            "no spec that it checks has `worker` here",
        ),
        ("schema: {$defs: {x: {maxProps: 2}}}", "policy-error", "`maxProps` is no keyword of JSON Schema"),
        (
            "schema: {$schema: 'http://json-schema.org/draft-07/schema#', dependentRequired: {a: [b]}}",
            "policy-error",
            "`dependentRequired` is no keyword of JSON Schema",
        ),
        ("schema: {$ref: 'https://example.com/x.json'}", "policy-error", "never fetched"),
        ("schema: {not: {$ref: '#/$defs/x'}}", "policy-error", "`$ref: #/$defs/x` does not resolve within the schema"),
        ("schema: {$ref: '#/$defs/x', $defs: {x: {$ref: '#/$defs/x'}}}", "policy-error", "infinitely recursive"),
        ("schema: {}\nover: manifests\nkinds: [Workspace]", "policy-error", "`Workspace` is a spec kind"),
        ("schema: {}\nkinds: [Job]", "policy-error", "unknown spec kind `Job`"),
        ("schema: {}\nkind: [Job]", "unknown-key", "kind"),
        ("schma: {}", "unknown-key", "schma"),
        ("schema: {}\nseverity: fatal", "invalid-value", "`error` or `warning`"),
    ],
)
def test_a_broken_schema_is_told_in_its_file(text: str, code: str, said: str) -> None:
    found = the(schema(text))
    assert (found.code, found.span.file) == (code, "policies/p.yaml")
    assert said in found.message


def test_a_reference_that_leads_nowhere_is_told_where_it_stands() -> None:
    text = "kinds: [Team]\nschema:\n  allOf:\n  - {$ref: '#/$defs/y'}\n  - {$ref: '#/$defs/x'}\n  $defs: {y: {}}"
    assert the(schema(text)).span.line == 6
    broken = the(compiled({"policies/p.yaml": "policy: A B\nschema: {}\n"}))
    assert (broken.message, broken.hint) == ("policy: `A B` is not a policy name", "use at most 63 of a-z, 0-9 and `-`")


@pytest.mark.parametrize(
    "text",
    [
        "{if: {properties: {file: {pattern: '^prod/'}}}, then: {properties: {spec: {required: [timeout]}}}}",
        "{allOf: [{properties: {file: {type: string}}}]}",
        "{anyOf: [{properties: {file: {type: string}}}, {properties: {kind: {const: Team}}}]}",
        "{not: {properties: {file: {pattern: '^prod/'}}}}",
        "{properties: {spec: {properties: {env: {properties: {NCCL_DEBUG: {enum: [INFO, WARN]}}}}}}}",
        "{properties: {metadata: {properties: {labels: {properties: {tier: {enum: [a, b]}}}}}}}",
    ],
)
def test_a_schema_of_files_and_keys_of_maps(text: str) -> None:
    assert schema(f"kinds: [TrainingJob]\nschema: {text}") == []


def test_a_schema_judges_keys_of_maps() -> None:
    text = "{properties: {spec: {properties: {env: {properties: {NCCL_DEBUG: {enum: [INFO, WARN]}}}}}}}"
    files = {
        "specs.yaml": HEAD + job(env={"NCCL_DEBUG": "TRACE"}),
        "policies/p.yaml": f"policy: debug\nkinds: [TrainingJob]\nschema: {text}\n",
    }
    assert the(compiled(files, "{}")).message == "spec.env.NCCL_DEBUG: 'TRACE' is not one of ['INFO', 'WARN']"


def test_a_schema_that_backtracks_ends() -> None:
    files = {
        "policies/p.yaml": "policy: slow\nkinds: [Team]\nschema: {properties: {metadata: {properties: {labels: "
        "{additionalProperties: {pattern: '^(a+)+$'}}}}}}\n",
        "t.yaml": HEAD + f"kind: Team\nmetadata: {{name: t, labels: {{x: '{'a' * 40}b'}}}}\n",
    }
    found = the(compiled(files, "python: {timeout: 1s}"))
    assert found.code == "policy-timeout"
    assert found.message.startswith("policy slow did not finish within 1 s")
    assert (found.span.file, found.span.line) == ("policies/p.yaml", 1)


def test_a_spec_among_the_policies_is_told() -> None:
    found = the(compiled({"policies/jobs.yaml": HEAD + job("other")}))
    assert found.code == "policy-error"
    assert "this is a spec in a directory for policies" in found.message


# -- Python ----------------------------------------------------------------------------------------------------------


def test_python_points_at_the_value_and_has_helpers() -> None:
    files = {
        "policies/bounds.py": "MOST = 5\n",
        "policies/p.py": IMPORT + "from bounds import MOST\n\n"
        "@policy('few-retries', kinds=['TrainingJob'], help='fewer')\n"
        "def few(spec):\n"
        "    if spec['spec']['retries'] > MOST:\n"
        "        yield problem('too many', 'spec', 'retries')\n",
    }
    found = the(compiled(files))
    assert (found.id, found.message, found.hint) == ("policy/few-retries", "too many", "fewer")
    assert SPECS.split("\n")[found.span.line - 1][found.span.column - 1] == "7"


def test_what_an_object_says_as_the_spec_does_is_found_there() -> None:
    found = the(
        python(
            "@policy('images', over='manifests', kinds=['StatefulSet'])\n"
            "def images(it):\n"
            "    if it['metadata']['name'] == 'w':\n"
            "        yield problem('old', 'spec', 'template', 'spec', 'containers', 0, 'image')\n"
        )
    )
    line = SPECS.split("\n")[found.span.line - 1]
    assert line[found.span.column - 1 : found.span.end_column - 1] == "'example.com/jupyter:1'"


def test_each_policy_gets_a_copy_of_its_own() -> None:
    text = (
        "@policy('a', kinds=['Workspace'])\ndef a(spec):\n    spec['metadata'].clear()\n"
        "@policy('b', kinds=['Workspace'])\ndef b(spec):\n    return spec['metadata']['name']\n"
    )
    assert the(python(text)).message == "w"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("@policy('p')\ndef p(spec)\n    pass\n", 4, "SyntaxError"),
        ("@policy('p', kinds=['Workspace'])\ndef p(spec):\n    return spec['x']\n", 5, "KeyError: 'x', with Workspace"),
        ("@policy('p', kinds=['Workspace'])\ndef p(spec):\n    return True\n", 3, "got bool, with Workspace vision/w"),
        ("@policy('p', kinds=['Workspace'])\ndef p(spec):\n    yield problem('x', 1.5)\n", 3, "keys and indexes"),
        ("@policy('p', kinds=['Workspace'])\ndef p():\n    return\n", 3, "takes 0 positional arguments"),
        ("@policy('P p')\ndef p(spec): ...\n", 3, "a policy name"),
        ("@policy('p', severity='fatal')\ndef p(spec): ...\n", 3, "severity='fatal'"),
        ("@policy('p', kinds=['Workspaces'])\ndef p(spec): ...\n", 3, "unknown spec kind `Workspaces`"),
        ("import socket\nsocket.create_connection(('1.1.1.1', 53))\n@policy('p')\ndef p(spec): ...\n", 4, "not"),
        ("@policy('p', kinds=['Workspace'])\ndef p(spec):\n    open('/etc/passwd')\n", 5, "not"),
        ("@policy('p')\ndef p(s): ...\n@policy('p')\ndef q(s): ...\n", 5, "duplicate policy name p"),
        ("import os\n@policy('p', kinds=['Workspace'])\ndef p(spec):\n    os._exit(0)\n", 4, "it ended its process"),
    ],
)
def test_a_broken_policy_is_told_at_its_line(text: str, line: int, said: str) -> None:
    found = the(python(text))
    assert (found.code, found.span.file, found.span.line) == ("policy-error", "policies/p.py", line), found
    assert said in found.message
    assert found.hint


@pytest.mark.parametrize("at", ["import", "check"])
def test_an_endless_policy_ends(at: str) -> None:
    loop = "while True: pass\n"
    text = f"@policy('p')\ndef p(spec):\n    {loop}" if at == "check" else f"{loop}@policy('p')\ndef p(spec): ...\n"
    found = the(python(text, "python: {allow: true, timeout: 1s}"))
    assert found.code == "policy-timeout"
    assert found.span.line == (3 if at == "check" else 1)


def test_an_answer_that_a_policy_forges_is_not_believed() -> None:
    text = "import os\n@policy('p')\ndef p(spec):\n    for fd in range(3, 4096):\n"
    text += "        try: os.write(fd, b'[1, 2]\\n')\n        except OSError: pass\n"
    found = the(python(text))
    assert found.code == "policy-error"


def test_python_policies_want_to_be_allowed() -> None:
    found = the(python("@policy('p')\ndef p(spec): return 'no'\n", "{}"))
    assert (found.code, found.span.file) == ("python-not-allowed", "policies/p.py")


def test_many_problems_are_counted() -> None:
    text = "@policy('p', kinds=['Workspace'])\ndef p(spec):\n    for n in range(1000): yield f'no {n}'\n"
    found = python(text)
    assert len(found) == 201
    assert sum("800 more problems from policy p" in d.message for d in found) == 1


def test_explain_lists_them(avactl: Run, tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "avactl.yaml").write_text("python: {allow: true}\npolicies: {jobs-end: {severity: warning}}\n")
    (tmp_path / "policies/p.py").write_text(IMPORT + "@policy('ours', kinds=['Team'], help='ask')\ndef p(spec): ...\n")
    done = avactl("explain", "policies")
    assert re.search(r"(?m)^  jobs-end +warning +Every training job has a `timeout`\.$", done.stdout), done.stderr
    assert re.search(r"(?m)^  images-pinned +off ", done.stdout)
    assert re.search(r"(?m)^  ours +error +Team: ask   \(policies/p\.py:3\)$", done.stdout)
    assert avactl("explain", "policy/ours").stdout.startswith("policy\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@policy\ndef p(spec): return 'no'\n", '@policy("jobs-have-owners")'),
        ("@policy('p', kinds=['Workspace'])\ndef p(spec): return ''\n", "a non-empty message"),
        ("@policy('p', kinds=['Workspace'])\ndef p(spec): raise ValueError('one\\ntwo')\n", "ValueError: one, with"),
    ],
)
def test_a_policy_that_would_say_nothing_is_told(text: str, said: str) -> None:
    found = the(python(text))
    assert (found.code, found.span.file) == ("policy-error", "policies/p.py")
    assert said in found.message


@pytest.mark.parametrize(
    "text",
    [
        "{x-owner: me, title: t, $comment: c, $defs: {propertis: {type: object}}, examples: [{propertis: 1}]}",
        "{properties: {metadata: {properties: {labels: {properties: {propertis: {const: {requierd: 1}}}}}}}, "
        "if: {required: [spec]}, then: {}, unevaluatedItems: true}",
        "{$schema: 'http://json-schema.org/draft-07/schema#', definitions: {x: {}}, dependencies: {a: [b]}, else: {}}",
        "{$schema: 'http://json-schema.org/draft-04/schema#', id: 'urn:x', minimum: 1, exclusiveMinimum: true}",
    ],
)
def test_keywords_of_each_dialect_are_accepted(text: str) -> None:
    assert schema(f"kinds: [TrainingJob]\nschema: {text}") == []
