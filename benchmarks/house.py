"""How easily a newcomer finds the way: rooms, floors, circles, long files and functions, vague words, commands, prose.

`python benchmarks/house.py [--root CHECKOUT]` prints the figures of a checkout: of this one, or of another commit's
beside it (`git worktree add ../before COMMIT`). A room is what stands directly in models/: a package, or a module. A
floor is the length of the longest way down through imports. Nothing here fails; the contracts in pyproject.toml do.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("models", "activities", "workflows", "workers", "client", "views", "cli")
SIZED = (*PRODUCT, "web", "backstop")
LIFECYCLES = ("rollout", "fleet", "requests", "bringup")
LONG_FILE = 700
LONGEST = 10
VAGUE = ("found", "said", "known", "made", "told", "given")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LETTERS = ("r", "b", "f", "s", "q")
_PARTICIPLE = re.compile(
    r"""(?!(?:backing|beginning|bring|building|ceiling|deed|embed|ending|exceed|feed|heading|holding|listing|mapping|
    meeting|need|nothing|opening|proceed|rating|ring|seed|setting|shed|speed|spelling|string|succeed|thing|warning)$)
    (?:\w{2,}(?:ed|ing)|begun|bitten|borne|bought|bound|broken|brought|built|burnt|caught|chosen|dealt|done|drawn|driven|
    due|eaten|fallen|fed|felt|forbidden|forgotten|found|frozen|given|gone|grown|heard|held|hidden|kept|known|laid|led|
    left|lent|lost|made|meant|met|overdue|paid|proven|risen|said|seen|sent|shaken|shown|slept|sold|spent|spoken|stolen|
    stood|stuck|sworn|swung|taken|taught|thought|thrown|told|torn|undone|understood|withdrawn|withheld|woken|won|worn|
    wound|written)""",
    re.VERBOSE,
)
_PARTICLE = re.compile(
    r"""a|again|ahead|alone|and|any|as|aside|at|away|back|before|behind|beside|between|by|down|first|for|from|here|in|
    inside|into|now|of|off|on|once|or|others|out|over|per|since|then|there|to|together|twice|under|up|with|within|
    without""",
    re.VERBOSE,
)
_WIRE = ("lost", "unserved")
"""Operations (`read.lost`): access files, addresses and tickets name them."""
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


def files(root: Path, folders: Iterable[str] = PRODUCT) -> list[Path]:
    """Return the files of product code. Migrations are written once and never changed, so they are left out."""
    return sorted(p for name in folders for p in (root / name).rglob("*.py") if "migrations" not in p.parts)


def arrows(root: Path) -> dict[str, set[str]]:
    """Return the rooms of models/, each with the other rooms that it imports from."""
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


def module_arrows(root: Path, folders: Iterable[str] = SIZED) -> dict[str, set[str]]:
    """Return the modules of all product code, each with those that it imports, inside functions too; types aside."""
    sys.path.insert(0, str(root))
    graph = grimp.build_graph(*folders, cache_dir=None, exclude_type_checking_imports=True)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def circles(below: Mapping[str, set[str]]) -> list[set[str]]:
    """Return groups of rooms in which each room reaches every other."""
    order: list[str] = []
    numbers: dict[str, int] = {}
    low: dict[str, int] = {}
    groups: list[set[str]] = []

    def visit(room: str) -> None:  # Tarjan's strongly connected components
        numbers[room] = low[room] = len(numbers)
        order.append(room)
        for there in below.get(room, ()):
            if there not in numbers:
                visit(there)
                low[room] = min(low[room], low[there])
            elif there in order:
                low[room] = min(low[room], numbers[there])
        if low[room] == numbers[room]:
            group = set(order[order.index(room) :])
            del order[order.index(room) :]
            if len(group) > 1:
                groups.append(group)

    for room in below:
        if room not in numbers:
            visit(room)
    return groups


def floors(below: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the floor of each room. A circle counts as one floor, as high as its highest room."""
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
    """Yield name, lines, cyclomatic complexity and number of parameters of each function."""
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
    """Yield the public classes and constants that a file defines."""
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def homonyms(root: Path) -> dict[str, list[str]]:
    """Return names that two files define, each with its files, without loggers and the options of commands."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in files(root):
        for name in set(names(path)):
            if not name.startswith("_") and name not in ("log", "logger", "app"):
                places[name].append(str(path.relative_to(root)))
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def verbless(root: Path) -> list[tuple[str, str]]:
    """Functions whose names are only participles and particles (`held`, `begun_by`), and where; a function is a verb.

    A property is a value, and a context manager reads as one: `with sealing(ledger):`.
    """
    places: list[tuple[str, str]] = []
    for path in files(root, SIZED):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name in _WIRE:
                continue
            first, *others = node.name.strip("_").split("_")
            kinds = " ".join(ast.unparse(one) for one in node.decorator_list)
            if (
                _PARTICIPLE.fullmatch(first)
                and all(_PARTICLE.fullmatch(word) or _PARTICIPLE.fullmatch(word) for word in others)
                and not re.search(r"property\b|\.setter\b|contextmanager\b", kinds)
            ):
                places.append((node.name, f"{path.relative_to(root)}:{node.lineno}"))
    return places


def nameless(root: Path) -> list[tuple[str, str]]:
    """Return values that are named by a participle, which does not say what they hold: each word, and where.

    Fields of classes aside: nearly all are on the wire, in histories or in what --json prints, and keep their names.
    """
    places: list[tuple[str, str]] = []
    for path in files(root, SIZED):
        tree = ast.parse(path.read_text())
        bodies = (part for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for part in node.body)
        fields = {id(part.target) for part in bodies if isinstance(part, ast.AnnAssign)}
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=word, ctx=ast.Store()) if word in (*VAGUE, *LETTERS) and id(node) not in fields:
                    places.append((word, f"{path.relative_to(root)}:{node.lineno}"))
                case ast.arg(arg=word) if word in LETTERS:
                    places.append((word, f"{path.relative_to(root)}:{node.lineno}"))
    return places


_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\"(])")
INVERTED = re.compile(r"[*`\"(]*(Of|What|Whatever|Where|Which|Who|Whoever|Whose|That|It is) ", re.IGNORECASE)


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page in Markdown: paragraphs, lists and cells of tables; no code and no headings."""
    page = re.sub(r"^(```|~~~).*?^\1", "", page, flags=re.S | re.M)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )|\s\|\s", page):
        text = re.sub(r"^[\s|*>-]+", "", " ".join(block.split()))
        if not text.startswith("#"):
            yield from (one for one in _SENTENCE.split(text) if len(one.split()) > 3)


def docstrings(root: Path, folders: Iterable[str] = SIZED) -> Iterator[tuple[str, str]]:
    """Yield each docstring of modules, classes and functions, after its place."""
    for path in files(root, folders):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
                yield f"{path.relative_to(root)}:{node.body[0].lineno}", text


def prose(root: Path) -> None:
    """Print the words of the docs, and how many sentences and docstrings open with what only their end explains."""
    pages = [p for p in (root / "README.md", *sorted((root / "docs").glob("*.md"))) if p.exists()]
    words = {p: len(p.read_text().split()) for p in pages}
    longest = ", ".join(f"{p.name} {n}" for p, n in sorted(words.items(), key=lambda page: -page[1])[:4])
    print(f"\ndocs: {sum(words.values())} words on {len(pages)} pages, docs/adr aside (longest: {longest})")
    every = [one for p in pages for one in sentences(p.read_text())]
    inverted = sum(bool(INVERTED.match(one)) for one in every)
    print(f"  sentences that open inverted: {inverted} of {len(every)} ({inverted / len(every):.1%})")

    for name, folders in (("product", SIZED), ("benchmarks", ("benchmarks",)), ("tests", ("tests",))):
        texts = [text for _, text in docstrings(root, folders)]
        inverted = sum(bool(INVERTED.match(text)) for text in texts)
        print(f"  docstrings of {name} that open inverted: {inverted} of {len(texts)} ({inverted / len(texts):.1%})")


_COMMANDS = """
import typer
from cli.app import app
def walk(group):
    for one in getattr(group, "commands", {}).values():
        yield from walk(one) if hasattr(one, "commands") else [one]
every = list(walk(typer.main.get_command(app)))
print(len(every), sum(len(p.opts) > 0 and p.param_type_name == "option" for one in every for p in one.params))
"""


def commands(root: Path) -> str:
    """Return how many commands and options the command line has."""
    ran = subprocess.run([sys.executable, "-c", _COMMANDS], cwd=root, capture_output=True, text=True, check=False)
    return "{} commands with {} options".format(*ran.stdout.split()) if ran.returncode == 0 else "commands: unreadable"


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
    between = circles(module_arrows(root))
    print(f"circles between files: {len(between)}" + "".join(f"\n  {', '.join(sorted(group))}" for group in between))
    sizes = {path: len(path.read_text().splitlines()) for path in files(root, SIZED)}
    print(f"\nproduct code: {sum(sizes.values())} lines in {len(sizes)} files, migrations aside")
    rooms = Counter(path.parent for path in sizes if path.name != "__init__.py")
    print(f"  most files in one folder: {', '.join(f'{p.relative_to(root)} {n}' for p, n in rooms.most_common(4))}")
    for name in LIFECYCLES:
        room = sum(n for path, n in sizes.items() if path.is_relative_to(root / "models" / name))
        print(f"  models/{name}: {room} lines")
    host = {path.name: n for path, n in sizes.items() if path.parent == root / "workflows" and n > 150}
    print(f"  workflows: {', '.join(f'{name} {n}' for name, n in sorted(host.items()))}")
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
    print("functions without a verb: " + (", ".join(f"{name} ({where})" for name, where in verbless(root)) or "none"))
    print(f"\n{commands(root)}")
    prose(root)


if __name__ == "__main__":
    main()
