"""All citations exist: pages and their sections in every file; files, `make` targets and decisions in pages."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADR = ROOT / "docs" / "adr"
PAGES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/how-to.md", "docs/change-a-workflow.md")
TEXTS = {"", ".html", ".js", ".md", ".mjs", ".py", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml"}
ROOMS = {path.name for path in ROOT.iterdir() if path.is_dir()}
EVERY_PAGE = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
_BELOW_A_FOLDER = re.compile(r"(\.?[\w-]+)(?:/[\w.-]+)+/?")
_OF_THE_HOUSE = re.compile(r"(?:[\w./-]+/[\w.-]+\.(?:py|md|sh|txt|yaml|json))|(?:\w[\w-]*\.(?:md|toml|lock))|Makefile")
_QUOTED = re.compile(r'"([^"]+)"')
_TARGET = re.compile(r"\bmake ([a-z][a-z-]*)")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
_CITED = re.compile(
    r"""(?<![\w/.}-])((?:[\w.-]+/)*\w[\w-]*\.md)\b(?:, ([A-Z][\w' -]*)(?=\))|((?:,? (?:and )?"[^"]+")*))"""
)
_DECISION = re.compile(r"\bdocs/adr/(\d{4})\b|\bADRs? (\d+)\b")
_BROKEN_LINE = re.compile(r"\s*\n\s*(?:#|--|//)?\s*")
_WRITTEN_BY_US = re.compile(r"(?:status/)?status-[\w-]+\.md")
"""Weekly reports, which `backstop report` writes."""


def paths_in(text: str) -> set[str]:
    """Files and folders of this repository that are named in backticks, alone or in a command; each as it is written.

    A folder is one below a folder of the root, a file goes by its extension. Code, names that stand for a reader's own
    (`rollout/h100-worked`, `fleet.yaml`), and what `make setup` makes are none.
    """
    words = {word for span in _IN_BACKTICKS.findall(text) for word in span.split()}
    folders = {word for word in words if (below := _BELOW_A_FOLDER.fullmatch(word)) and below[1] in ROOMS}
    return {path for path in folders | {w for w in words if _OF_THE_HOUSE.fullmatch(w)} if not path.startswith(".venv")}


def cited_and_missing(text: str, at: Path) -> list[str]:
    """Pages that this text cites and that are not in the repository, and sections that these pages do not have.

    A page is cited from the root, from `docs`, or from beside the file. A section comes right after it, in quotes, or
    without them at the end of brackets: messages cite so.
    """
    missing = []
    one_line = _BROKEN_LINE.sub(" ", text)
    for name, bare, quoted in _CITED.findall(one_line):
        pages = [place.resolve() for place in (at.parent / name, ROOT / name, ROOT / "docs" / name) if place.exists()]
        if not pages or not pages[0].is_relative_to(ROOT):
            missing += [] if _WRITTEN_BY_US.fullmatch(name) else [name]
        else:
            sections = [bare] if bare else _QUOTED.findall(quoted)
            missing += [f"{name}: {section}" for section in sections if section not in headings(pages[0])]
    numbers = {int(number or alone) for number, alone in _DECISION.findall(one_line)}
    return missing + [f"ADR {number}" for number in sorted(numbers) if not list(ADR.glob(f"{number:04d}-*.md"))]


@cache
def headings(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE))


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_folder_that_a_page_names_is_there(page: str) -> None:
    named = paths_in((ROOT / page).read_text())
    assert len(named) >= 5
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_every_page_and_section_that_any_file_cites_is_in_the_repository() -> None:
    tracked = [ROOT / name for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()]
    texts = [
        path
        for path in tracked
        if path.suffix in TEXTS or (path.suffix == ".json" and path.is_relative_to(ROOT / "docs"))
    ]
    wrong = {
        str(path.relative_to(ROOT)): missing
        for path in texts
        if path != Path(__file__) and path.exists() and (missing := cited_and_missing(path.read_text(), path))
    }
    assert wrong == {}
    assert len(texts) > 1000


def test_a_page_a_section_and_a_decision_that_are_not_there_are_found_however_lines_are_broken() -> None:
    text = """Source: LAW.md, "Words"; docs/gone.md; ../shared/OUTSIDE.md; ../../shared/OUTSIDE.md.
    # As docs/design.md, "The
    # cut ladder", "Nowhere" and "Words" say, README.md, "Your own fleet", slurm.md, docs/adr/0099, ADR 9999, ADR 0088
    (docs/operations.md, Two roles), (docs/security.md, Keys).
    """
    assert cited_and_missing(text, ROOT / "models" / "wire.py") == [
        "LAW.md",
        "docs/gone.md",
        "../shared/OUTSIDE.md",
        "../../shared/OUTSIDE.md",
        "docs/design.md: Nowhere",
        "docs/operations.md: Two roles",
        "ADR 99",
        "ADR 9999",
    ]


def test_every_page_that_is_drawn_is_shown() -> None:
    """Drawn are one cluster and 1,000, light and dark; shown are one in light and 1,000 in dark.

    What one cluster does not have is drawn at 1,000 alone.
    """
    drawn = {path.stem for path in (ROOT / "docs" / "screens").iterdir()}
    one = {stem.removesuffix("-one-light") for stem in drawn if stem.endswith("-one-light")}
    vast = {stem.removesuffix("-thousand-light") for stem in drawn if stem.endswith("-thousand-light")}
    assert one < vast
    pages = [f"{page}-one" for page in one] + [f"{page}-thousand" for page in vast]
    assert drawn == {f"{page}-{scheme}" for page in pages for scheme in ("light", "dark")}
    shown = re.findall(r"\]\(screens/([\w-]+)\.png\)", (ROOT / "docs" / "console.md").read_text())
    assert sorted(shown) == sorted([f"{p}-one-light" for p in one] + [f"{p}-thousand-dark" for p in vast])


def test_what_is_gone_is_found_and_examples_and_code_are_not_taken_for_paths() -> None:
    gone = {"tests/unit/gone.py", "modles/wire.py", "docs/adrs", "GONE.md", "gone.toml"}
    others = (
        "rollout/h100-worked",
        "decide(state, now)",
        "gpu_count",
        "fleet.yaml",
        ".venv/bin/backstop",
        "Stay.since",
        "a/b",
    )
    text = " ".join(f"`{word}`" for word in (*gone, *others, "python -m pytest tests/unit/gone.py"))
    assert paths_in(text) == gone


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_link_leads_to_a_page_and_a_heading(page: str) -> None:
    for target, anchor in _LINK.findall((ROOT / page).read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        there = (ROOT / page).parent / target if target else ROOT / page
        assert there.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in {slug(heading) for heading in headings(there)}, f"{page} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_that_a_page_names_is_one(page: str) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / page).read_text()
    named = {
        target for span in (*_FENCED.findall(text), *_IN_BACKTICKS.findall(text)) for target in _TARGET.findall(span)
    }
    assert named <= targets


def test_every_decision_is_in_the_index_under_its_own_title() -> None:
    titles = {}
    for path in ADR.glob("[0-9]*.md"):
        number, title = re.fullmatch(r"# (\d+)\. (.+)", path.read_text().partition("\n")[0]).groups()  # type: ignore[union-attr]
        titles[path.name] = int(number), title
        assert path.name.startswith(f"{int(number):04d}-")
    rows = re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \| (.+) \|$", (ADR / "README.md").read_text(), re.MULTILINE)
    assert [(name, (int(number), title)) for number, title, name, _ in rows] == sorted(titles.items())


def attacker_rows() -> list[tuple[str, str, dict[str, str]]]:
    """Return the rows of docs/security.md: who, what they cannot do, and the tests beside it, each with its module."""
    table = (ROOT / "docs" / "security.md").read_text().partition("## Keys")[0]
    who, module, rows = "", "", []
    for line in re.findall(r"^\| (?!attacker has|---).*\|$", table, re.MULTILINE):
        attacker, _, cannot, tests = (cell.strip() for cell in line.strip("|").split("|"))
        who = attacker or who
        found = {}
        for word in re.findall(r"`(test_\w+)`(?=(:?))", tests):
            if word[1]:
                module = word[0]
            else:
                found[word[0]] = module
        rows.append((who, cannot, found))
    return rows


def test_every_row_of_the_attackers_has_tests_that_are_there() -> None:
    rows = attacker_rows()
    modules: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):  # two rooms may have one of a name
        modules[path.stem] = modules.get(path.stem, "") + path.read_text()
    named = {(module, name) for _, _, tests in rows for name, module in tests.items()}
    assert [(who, cannot) for who, cannot, tests in rows if not tests] == []
    assert [one for one in named if f"def {one[1]}(" not in modules.get(one[0], "")] == []
    assert len(rows) > 25
    print(
        f"attackers: {len(rows)} rows of {len({who for who, _, _ in rows})} attackers, {len(named)} tests beside them"
    )
