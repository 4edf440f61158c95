"""The pages for those who carry on name what is there: files, folders, `make` targets, decisions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADR = ROOT / "docs" / "adr"
PAGES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/how-to.md", "docs/change-a-workflow.md")
ROOMS = {path.name for path in ROOT.iterdir() if path.is_dir()}
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
_BELOW_A_FOLDER = re.compile(r"(\.?[\w-]+)(?:/[\w.-]+)+/?")
_OF_THE_HOUSE = re.compile(r"(?:[\w./-]+/[\w.-]+\.(?:py|md|sh|txt|yaml|json))|(?:\w[\w-]*\.(?:md|toml|lock))|Makefile")
_TARGET = re.compile(r"\bmake ([a-z][a-z-]*)")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def paths_in(text: str) -> set[str]:
    """Files and folders of this repository that are named in backticks, alone or in a command; each as it is written.

    A folder is one below a folder of the root, a file goes by its extension. Code, names that stand for a reader's own
    (`rollout/h100-worked`, `fleet.yaml`), and what `make setup` makes are none.
    """
    words = {word for span in _IN_BACKTICKS.findall(text) for word in span.split()}
    folders = {word for word in words if (below := _BELOW_A_FOLDER.fullmatch(word)) and below[1] in ROOMS}
    return {path for path in folders | {w for w in words if _OF_THE_HOUSE.fullmatch(w)} if not path.startswith(".venv")}


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_folder_that_a_page_names_is_there(page: str) -> None:
    named = paths_in((ROOT / page).read_text())
    assert len(named) >= 5
    assert {path for path in named if not (ROOT / path).exists()} == set()


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


@pytest.mark.parametrize(
    "page", [*PAGES, "README.md", "docs/operations.md", "docs/performance.md", "docs/adr/README.md"]
)
def test_every_link_leads_to_a_page_and_a_heading(page: str) -> None:
    for target, anchor in _LINK.findall((ROOT / page).read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        there = (ROOT / page).parent / target if target else ROOT / page
        assert there.exists(), f"{page} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{page} links to {target}#{anchor}"


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
