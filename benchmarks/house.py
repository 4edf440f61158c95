"""How a stranger finds the house: rooms, floors, circles, arrows up, long files and functions, vague words.

`python benchmarks/house.py [--root CHECKOUT]` prints the figures of a checkout: of this one, or of another commit's
beside it (`git worktree add ../before COMMIT`). A room is what stands directly in models/: a package, or a module. A
floor is the length of the longest way down through imports. Nothing here fails; the contracts in pyproject.toml do.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("models", "activities", "workflows", "workers", "client", "views", "cli")
LONG_FILE = 700
LONGEST = 10
VAGUE = ("found", "said", "known", "made", "told", "given")
_BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.IfExp,
    ast.ExceptHandler,
    ast.With,
    ast.AsyncWith,
    ast.Assert,
)


def files(root: Path) -> list[Path]:
    """Product code; migrations are written once and never changed."""
    return sorted(p for name in PRODUCT for p in (root / name).rglob("*.py") if "migrations" not in p.parts)


def arrows(root: Path) -> dict[str, set[str]]:
    """The rooms of models/, and which other rooms each imports from."""
    sys.path.insert(0, str(root))
    graph = grimp.build_graph("models", cache_dir=None)
    below: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules - {"models"}:
        here = module.split(".")[1]
        below[here] |= set()
        for imported in graph.find_modules_directly_imported_by(module):
            there = imported.split(".")[1] if "." in imported else here
            if there != here:
                below[here].add(there)
    return dict(below)


def circles(below: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of rooms each of which reaches every other one of its group."""
    reach = {room: set(there) for room, there in below.items()}
    for through in below:
        for room in below:
            if through in reach[room]:
                reach[room] |= reach[through]
    groups = {frozenset({other for other in reach[room] if room in reach[other]} | {room}) for room in below}
    return [set(group) for group in groups if len(group) > 1]


def floors(below: Mapping[str, set[str]]) -> dict[str, int]:
    """The floor of each room; what is in a circle is as high as its highest, and counted once."""
    together = {room: group for group in circles(below) for room in group}
    heights: dict[str, int] = {}

    def height(room: str) -> int:
        if room not in heights:
            group = together.get(room, {room})
            under = {there for one in group for there in below[one]} - group
            heights.update(dict.fromkeys(group, 1 + max((height(there) for there in under), default=0)))
        return heights[room]

    return {room: height(room) for room in sorted(below)}


def functions(path: Path) -> Iterator[tuple[str, int, int, int]]:
    """Name, lines, cyclomatic complexity, parameters of each function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = list(ast.walk(node))
            branches = sum(isinstance(n, _BRANCHES) for n in inner)
            branches += sum(len(n.values) - 1 for n in inner if isinstance(n, ast.BoolOp))
            branches += sum(len(n.ifs) for n in inner if isinstance(n, ast.comprehension))
            branches += sum(1 for n in inner if isinstance(n, ast.match_case))
            taken = node.args
            count = len(taken.args) + len(taken.kwonlyargs) + len(taken.posonlyargs)
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1, branches + 1, count


def names(path: Path) -> Iterator[str]:
    """Public classes and constants that a file defines."""
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def homonyms(root: Path) -> dict[str, list[str]]:
    """Names that two files define, each with its files; loggers and options of commands aside."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in files(root):
        for name in set(names(path)):
            if not name.startswith("_") and name not in ("log", "logger", "app"):
                places[name].append(str(path.relative_to(root)))
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def nameless(root: Path) -> list[tuple[str, str]]:
    """Values that are called by a participle, which does not say what they hold: each word, and where.

    Fields of classes aside: nearly all are on the wire, in histories or in what --json prints, and keep their names.
    """
    places: list[tuple[str, str]] = []
    for path in files(root):
        tree = ast.parse(path.read_text())
        bodies = (part for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for part in node.body)
        fields = {id(part.target) for part in bodies if isinstance(part, ast.AnnAssign)}
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=word, ctx=ast.Store()) if word in VAGUE and id(node) not in fields:
                    places.append((word, f"{path.relative_to(root)}:{node.lineno}"))
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, metavar="CHECKOUT")
    root = parser.parse_args().root.resolve()
    below = arrows(root)
    heights = floors(below)
    groups = circles(below)
    print(
        f"models/: {len(below)} rooms on {max(heights.values())} floors, {sum(map(len, below.values()))} arrows between"
    )
    print(f"  circles: {len(groups)}" + "".join(f"; {', '.join(sorted(group))}" for group in groups))
    up = sum(heights[there] >= heights[here] for here, all_there in below.items() for there in all_there)
    print(f"  arrows up, or level inside a circle: {up}")
    for floor in range(max(heights.values()), 0, -1):
        print(f"  {floor:2d}  {', '.join(room for room, height in heights.items() if height == floor)}")
    sizes = {path: len(path.read_text().splitlines()) for path in files(root)}
    print(f"\nproduct code: {sum(sizes.values())} lines in {len(sizes)} files, migrations aside")
    rooms = Counter(path.parent for path in sizes if path.name != "__init__.py")
    print(f"  most files in one folder: {', '.join(f'{p.relative_to(root)} {n}' for p, n in rooms.most_common(4))}")
    long = {path: lines for path, lines in sizes.items() if lines > LONG_FILE}
    print(
        f"  files over {LONG_FILE} lines: "
        + (", ".join(f"{p.relative_to(root)} {n}" for p, n in long.items()) or "none")
    )
    every = [
        (lines, ccn, count, f"{path.relative_to(root)} {name}")
        for path in sizes
        for name, lines, ccn, count in functions(path)
    ]
    print(f"\nthe {LONGEST} longest functions (lines, complexity, parameters)")
    for lines, ccn, count, where in sorted(every, key=lambda f: (-f[0], f[3]))[:LONGEST]:
        print(f"  {lines:4d} {ccn:4d} {count:3d}  {where}")
    print(f"\nthe {LONGEST} most branching functions")
    for lines, ccn, count, where in sorted(every, key=lambda f: (-f[1], f[3]))[:LONGEST]:
        print(f"  {lines:4d} {ccn:4d} {count:3d}  {where}")
    twice = homonyms(root)
    print(f"\nwords for two things: {len(twice)}")
    for name, places in twice.items():
        print(f"  {name}: {', '.join(places)}")
    words = Counter(word for word, _ in nameless(root))
    print("values without a noun: " + (", ".join(f"{word} {n}" for word, n in words.most_common()) or "none"))


if __name__ == "__main__":
    main()
