"""The code stays easy to find one's way in: no import circle, no long file, no word for two things."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.house import (
    INVERTED,
    LETTERS,
    LONG_FILE,
    ROOT,
    VAGUE,
    arrows,
    circles,
    docstrings,
    files,
    floors,
    homonyms,
    module_arrows,
    nameless,
    verbless,
)


def test_rooms_of_models_stand_on_floors_and_no_arrow_goes_up() -> None:
    below = arrows(ROOT)
    heights = floors(below)
    assert circles(below) == []
    assert {"rollout", "planning", "cluster", "base"} <= heights.keys()
    assert all(heights[there] < heights[here] for here, all_there in below.items() for there in all_there)


def test_no_files_import_each_other_in_a_circle() -> None:
    below = module_arrows(ROOT)
    assert {"models.planning.placement", "activities.adapters.ledger.scheduler_mirror", "cli.commands.launch"} <= set(
        below
    )
    assert circles(below) == []


def test_an_import_inside_a_function_closes_a_circle_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is for types alone does not: it is not run."""
    package = tmp_path / "rooms"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text("def later():\n    import rooms.second\n")
    (package / "second.py").write_text("import rooms.first\n")
    (package / "third.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rooms.fourth\n")
    (package / "fourth.py").write_text("import rooms.third\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert circles(module_arrows(tmp_path, ("rooms",))) == [{"rooms.first", "rooms.second"}]


def test_no_file_is_too_long_to_read_in_one_sitting() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files(ROOT)}
    assert {path: count for path, count in lines.items() if count > LONG_FILE} == {}


def test_a_workflows_file_reads_as_one_story() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "workflows").glob("*.py")}
    assert "cluster_rollout.py" in lines
    assert {name: count for name, count in lines.items() if count > 250} == {}


def test_no_word_names_two_things() -> None:
    assert homonyms(ROOT) == {}


def test_values_are_called_by_nouns() -> None:
    assert nameless(ROOT) == [], (
        "Call each of these values by what it holds (`row`, `receipt`, `sentence`, `teams`), not by what was done to "
        f"get it: {', '.join((*VAGUE, *LETTERS))} do not say that (CONTRIBUTING.md, How a change is made)."
    )


def test_functions_are_called_by_verbs() -> None:
    assert verbless(ROOT) == [], (
        "Call each of these functions by what it does (`count_nodes`, `is_begun`) or returns (`refusal_of`), not by a "
        "participle (CONTRIBUTING.md, How a change is made)."
    )


@pytest.mark.parametrize("name", ["held", "_begun_by", "asked_or_held", "_standing", "left_out", "changed_by_others"])
def test_a_function_without_a_verb_is_told_with_its_place(tmp_path: Path, name: str) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "rows.py").write_text(f"class Row:\n    async def {name}(self): pass\n")
    assert verbless(tmp_path) == [(name, "web/rows.py:2")]


@pytest.mark.parametrize(
    "name", ["read", "put_off", "feed_from", "embed", "bring_in", "_beginning", "held_gpus", "refusal_of", "is_held"]
)
def test_a_verb_or_a_noun_names_a_function(tmp_path: Path, name: str) -> None:
    (tmp_path / "models").mkdir()
    rows = f"def {name}(): pass\n\n@property\ndef held(self): pass\n\n@contextmanager\ndef sealing(): yield\n"
    (tmp_path / "models" / "rows.py").write_text(rows)
    assert verbless(tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        "{word} = rows",
        "{word}: list[str] = []",
        "first, {word} = rows",
        "for {word} in rows: pass",
        "names = [{word} for {word} in rows]",
        "if {word} := rows: pass",
        "with rows as {word}: pass",
        "for row in rows: {word} = row",
    ],
)
@pytest.mark.parametrize("word", [*VAGUE, *LETTERS])
def test_a_value_without_a_noun_is_told_with_its_place(tmp_path: Path, word: str, line: str) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "rows.py").write_text(f"def of(rows):\n    {line.format(word=word)}\n")
    assert nameless(tmp_path) == [(word, "models/rows.py:2")]


@pytest.mark.parametrize("line", ["key = lambda {word}: rows", "def key({word}): pass", "def key(*, {word}=1): pass"])
@pytest.mark.parametrize("word", LETTERS)
def test_an_argument_of_one_letter_is_told_with_its_place(tmp_path: Path, word: str, line: str) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "rows.py").write_text(f"{line.format(word=word)}\n")
    assert nameless(tmp_path) == [(word, "web/rows.py:1")]


def test_a_field_keeps_its_name_and_reading_one_is_no_value(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "json_answers.py").write_text(
        "class Answer:\n    said: str = ''\n    def text(self):\n        known = self.said\n        return known\n"
    )
    assert nameless(tmp_path) == [("known", "cli/json_answers.py:4")]


def bare_names(source: str) -> list[str]:
    """Names in f-strings that stand in a command as it is typed, and that a shell would take apart."""
    texts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)]
    return [
        ast.unparse(after.value)
        for text in texts
        for before, after in pairwise(text.values)
        if isinstance(before, ast.Constant)
        and re.search(r"\bbackstop( [a-z-]+)+ $", str(before.value))
        and isinstance(after, ast.FormattedValue)
        and re.search(r"\b(cluster|name)$", ast.unparse(after.value))
    ]


def test_a_cluster_is_quoted_in_a_command_as_it_is_typed() -> None:
    """A name may have a blank or a quote in it."""
    assert bare_names("f'see `backstop status {row.cluster}`'") == ["row.cluster"]
    assert bare_names("f'see `backstop status {shlex.quote(row.cluster)}`, {row.cluster}'") == []
    product = (path for path in files(ROOT) if path.relative_to(ROOT).parts[0] not in ("tests", "benchmarks"))
    sources = ((path, source) for path in product if "backstop " in (source := path.read_text()))
    bare = {str(path.relative_to(ROOT)): names for path, source in sources if (names := bare_names(source))}
    assert bare == {}


def test_docstrings_name_their_subject_first() -> None:
    inverted = [place for place, text in docstrings(ROOT) if INVERTED.match(text)]
    assert inverted == [], "Open with a verb or the thing itself, not with what, which, who, whose, where, of or that."


def test_circles_and_floors_are_found() -> None:
    below = {"a": {"b"}, "b": {"a", "c"}, "c": set[str](), "d": {"a"}}
    assert circles(below) == [{"a", "b"}]
    assert floors(below) == {"a": 2, "b": 2, "c": 1, "d": 3}
