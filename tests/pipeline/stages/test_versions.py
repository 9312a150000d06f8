"""A stage whose code changed may need a new version number; otherwise old results could be taken for new ones.

When this fails: if the same settings would now give another result, raise the version of its
`Kind`, at the end of the stage's file. In either case, then rewrite the record:

    python -m tests.pipeline.stages.test_versions
"""

import ast
import hashlib
import inspect
import json
from pathlib import Path

from unmdpo.pipeline.stages import KINDS

RECORD = Path(__file__).with_name("versions.json")


def code_digest(work):
    """Digest of the stage's whole module, ignoring comments, docstrings and layout."""
    tree = ast.parse(Path(inspect.getfile(work)).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def current():
    return {name: {"version": kind.version, "code": code_digest(kind.work)} for name, kind in KINDS.items()}


def test_changed_stages_have_been_thought_about():
    recorded, now = json.loads(RECORD.read_text()), current()
    assert now == recorded, __doc__


def test_versions_never_go_back():
    recorded = json.loads(RECORD.read_text())
    assert all(kind.version >= recorded[name]["version"] for name, kind in KINDS.items())


if __name__ == "__main__":
    RECORD.write_text(json.dumps(current(), indent=2) + "\n")
