"""Tests of the gate do not depend on how much time passes: they wait for what is to be true, by tests/waiting.py.

What needs real seconds is marked nightly. The exceptions below may only become fewer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
WAITS = "waiting.py"
"""May sleep and read the time, for all others."""
NIGHTLY_FOLDERS = ("chaos", "slurm")
TURNED = "loop"
"""The folder of stories whose clock stands still while they work."""
BUT = ("chaos/test_check.py",)
EXCEPTIONS = {
    "browser/test_story.py": 1,
    "e2e/day_two.py": 9,
    "e2e/late_admission.py": 2,
    "e2e/skipping.py": 3,
    "e2e/test_prometheus_example.py": 3,
    "nightly_report.py": 1,
    "replay/record.py": 17,
}
"""How many lines of a file may do so still: a number may fall, a file may go, and nothing may be added.

All are of helpers that only nightly tests call, or people who record a history.
"""
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
SHORT = {"seconds", "milliseconds", "microseconds"}


def is_nightly(marks: ast.AST) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "nightly" for node in ast.walk(marks))


def of_the_gate(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that a test of the gate may run: no nightly test, and no file whose tests all are nightly."""
    marks = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark"]
    if any(is_nightly(value) for value in marks):
        return
    nightly = [n for n in tree.body if any(is_nightly(mark) for mark in getattr(n, "decorator_list", []))]
    tests = [n for n in tree.body if getattr(n, "name", "").startswith("test_")]
    if not tests or set(tests) - set(nightly):
        for node in tree.body:
            if node not in nightly:
                yield from ast.walk(node)


def name_of(call: ast.AST) -> str:
    """The last word of what is called: `sleep` of `asyncio.sleep(1)`."""
    if not isinstance(call, ast.Call):
        return ""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_late(node: ast.AST) -> bool:
    """Return whether this depends on how much time passes."""
    match node:
        case ast.Call(args=[ast.Constant(value=0)]) if name_of(node) == "sleep":
            return False  # others have their turn
        case ast.Call():
            return name_of(node) == "sleep" or name_of(node) in CLOCKS
        case ast.Compare(left=left, comparators=others):
            return any(name_of(side) == "time" for value in (left, *others) for side in ast.walk(value))
        case ast.BinOp(left=now, op=ast.Add(), right=later):
            short = name_of(later) == "timedelta" and {word.arg for word in later.keywords} & SHORT  # type: ignore[attr-defined]
            return name_of(now) == "now" and bool(short)
    return False


def is_turned(node: ast.AST) -> bool:
    """Return whether it waits by a turned clock's loop, or by its world's time."""
    return ast.unparse(node).startswith(("asyncio.sleep(", "world.now() +"))


def late_lines(path: Path) -> list[int]:
    nodes = [node for node in of_the_gate(ast.parse(path.read_text())) if is_late(node)]
    turned = path.is_relative_to(TESTS / TURNED)
    return sorted({node.lineno for node in nodes if not (turned and is_turned(node))})  # type: ignore[attr-defined]


def files_of_the_gate() -> list[Path]:
    files = (path for path in TESTS.rglob("*.py") if "node_modules" not in path.parts)
    others = [TESTS / name for name in (*NIGHTLY_FOLDERS, WAITS)]
    apart = [TESTS / name for name in BUT]
    return sorted(path for path in files if path in apart or not any(path.is_relative_to(other) for other in others))


def test_no_test_of_the_gate_depends_on_how_much_time_passes() -> None:
    late = {path.relative_to(TESTS).as_posix(): late_lines(path) for path in files_of_the_gate()}
    more = {path: lines for path, lines in late.items() if len(lines) > EXCEPTIONS.get(path, 0)}
    assert more == {}, "wait by tests/waiting.py, turn a clock by hand, or mark the test nightly"
    fewer = {path: len(late.get(path, [])) for path, count in EXCEPTIONS.items() if len(late.get(path, [])) < count}
    assert fewer == {}, "these may stand in EXCEPTIONS now: they only become fewer"


@pytest.mark.parametrize(
    ("line", "late"),
    [
        ("await asyncio.sleep(1)", True),
        ("await asyncio.sleep(0)", False),
        ("time.sleep(0.01)", True),
        ("sleep(STILL)", True),
        ("began = time.monotonic()", True),
        ("took = perf_counter() - began", True),
        ("assert time.time() - began < 3", True),
        ("stamp = str(int(time.time()))", False),
        ("until = datetime.now(UTC) + timedelta(seconds=3)", True),
        ("until = datetime.now(UTC) + timedelta(days=3)", False),
        ("until = start + timedelta(seconds=3)", False),
    ],
)
def test_what_depends_on_time_is_found(tmp_path: Path, line: str, late: bool) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(f"async def test_it():\n    {line}\n")
    assert late_lines(file) == [2] * late
    file.write_text(f"@pytest.mark.nightly\nasync def test_it():\n    {line}\n")
    assert late_lines(file) == []
    file.write_text(f"pytestmark = [pytest.mark.nightly]\n\nasync def test_it():\n    {line}\n")
    assert late_lines(file) == []
