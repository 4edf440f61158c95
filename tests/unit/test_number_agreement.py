"""Sentences agree with their numbers: no "1 GPUs", no "1 have been", wherever the product makes one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.texts import count_text, gpus_text, spoken_for_text, verb_of

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("models", "activities", "client", "cli", "views", "web")
NOUNS = (
    "GPUs|clusters|teams|jobs|nodes|islands|quotas|rollouts|windows|requests|grants|objections|notices|messages|rows|"
    "lines|entries|records|archives|limits|accounts|changes|reasons|samples|days|hours|weeks|minutes|attempts|failures|"
    "plans|seals|shards|effects|steps"
)
PLURAL = re.compile(rf"^ (?:(?:more|other|open|healthy|lost) )?(?:{NOUNS})\b")
VERB = re.compile(r"^ (?:are|have|were|do|stand|wait|need|fit|lack|hold|run|differ|count|go|come)\b")
COUNTED = {"count_text", "gpus_text", "count", "gpus"}
NO_NUMBERS = {"cluster", "what"}
SIZE = re.compile(r"\b_?[A-Z][A-Z_]+\b")
"""A constant of ours. None is 1."""
ONE_APART = re.compile(r"[=!<>]=? 1\b|\bone\b|\bmany\b|GRAIN")
"""The condition of an expression that says something else of one."""


def offences(source: str) -> Iterator[str]:
    """Pieces of f-strings that are wrong where the number is 1."""
    tree = ast.parse(source)
    apart = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.IfExp) and ONE_APART.search(ast.unparse(node.test))
        for branch in (node.body, node.orelse)
        for inner in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr) or id(node) in apart:
            continue
        for before, value, text in zip((None, *node.values), node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            shown, after = ast.unparse(value.value), str(text.value)
            name = value.value.func if isinstance(value.value, ast.Call) else value.value
            last = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
            noun = PLURAL.match(after) and last not in NO_NUMBERS and not SIZE.search(shown)
            theirs = isinstance(before, ast.Constant) and str(before.value).endswith("s of ")  # jobs of 1 team run
            if noun or (last in COUNTED and VERB.match(after) and not theirs):
                yield f"line {node.lineno}: {{{shown}}}{after[:30]}"


def test_what_is_wrong_of_one_is_found() -> None:
    wrong = ['f"{len(rows)} of {n} clusters"', 'f"{gpus_text(n)} are owed"', 'f"and {n:,} more quotas"']
    right = ["f\"{count_text(n, 'job')} {verb_of(n)} here\"", 'f"{n} jobs" if n != 1 else "it"', 'f"{MOST} rows"']
    assert [len(list(offences(line))) for line in wrong + right] == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("layer", LAYERS)
def test_no_sentence_counts_one_in_the_plural(layer: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)} {offence}"
        for path in sorted((ROOT / layer).rglob("*.py"))
        for offence in offences(path.read_text())
    ]
    assert not faults, "count with count_text of models/texts.py, choose the verb with verb_of:\n" + "\n".join(faults)


def test_no_template_counts_one_in_the_plural() -> None:
    written = re.compile(rf"\}}\}} (?:more )?(?:{NOUNS})\b")
    templates = [p for layer in LAYERS for p in (ROOT / layer).rglob("templates/*") if p.suffix in (".txt", ".html")]
    faults = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in sorted(templates)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if written.search(line) and "== 1" not in line
    ]
    assert len(templates) > 20
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("count", "sentence"),
    [
        (0, "0 clusters are, 0 GPUs have, 0 are spoken for"),
        (1, "1 cluster is, 1 GPU has, 1 is spoken for"),
        (2, "2 clusters are, 2 GPUs have, 2 are spoken for"),
        (1200, "1,200 clusters are, 1,200 GPUs have, 1,200 are spoken for"),
    ],
)
def test_counts_and_their_verbs(count: int, sentence: str) -> None:
    made = f"{count_text(count, 'cluster')} {verb_of(count)}, {gpus_text(count)} {verb_of(count, 'has', 'have')}"
    assert f"{made}, {spoken_for_text(count)}" == sentence


def test_no_page_of_the_docs_shows_one_in_the_plural() -> None:
    """Transcripts are outputs of commands: what a command says wrong shows there too."""
    wrong = re.compile(rf"(?<![\d.,/-])1 (?:more )?(?:{NOUNS}|have|are|were)\b")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    faults = [f"{page.name}: {m[0]}" for page in pages for m in wrong.finditer(page.read_text())]
    assert wrong.search("1 rollouts open")
    assert wrong.search("1 have been")
    assert faults == []
