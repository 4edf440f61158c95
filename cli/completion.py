"""Answers the shell's completion at once: from files, never from the server.

Theory of operation. Every Tab starts a process, so nothing heavy may be imported: no typer, no pydantic, no Temporal.
The commands and their options are in a file that is made from typer's own whenever our sources are newer
(cli/completion_tree.py). Names are in another file, which commands update as they see names
(cli/completion_names.py). If names are older than some minutes, a process of its own looks them up for the next Tab.
The shell's side is the script that `backstop --install-completion` writes; docs/adr/0043.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cli import completion_names as names

ASKED_BY = "_BACKSTOP_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")
_OLD_SECONDS = 600.0
"""Names older than this are looked up again."""
_PAUSE_SECONDS = 60.0
"""The shortest time between two look-ups."""
_LOOK = (
    "import importlib; run = importlib.import_module({main!r}).run; "
    "[run([*words.split(), '-o', 'name']) for words in ('fleet show', 'status', 'request list', 'calendar show')]"
)
Offer = tuple[str, str]
"""A word and its description."""


def is_shell_asking() -> bool:
    """Return whether a shell asks in a way that this file answers; typer answers others."""
    return os.environ.get(ASKED_BY, "") in [f"complete_{shell}" for shell in _SHELLS]


def answer() -> int:
    """Print the offers; return the exit code, which only fish reads: 0 if there is any offer."""
    shell = os.environ[ASKED_BY].removeprefix("complete_")
    words, begun = _read_typed(shell)
    offers = [(word, what) for word, what in offers_for(_tree(), names.kept_names(), words, begun) if _is_plain(word)]
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if offers else 1
    text = "\n".join(_lines(shell, offers))
    if shell == "zsh":
        text = f"_arguments '*: :(({text}))'" if text else "_files"
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{text}\n" if text else "")
        sys.stdout.flush()
    _look_again()
    return 0


def _read_typed(shell: str) -> tuple[list[str], str]:
    """Return the words before the current one, and its part before the cursor."""
    if shell == "bash":
        words = os.environ.get("COMP_WORDS", "").split("\n")
        at = int(os.environ.get("COMP_CWORD", "0") or 0)
        return words[1:at], words[at] if at < len(words) else ""
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:]
    return (words[:-1], words[-1]) if words and not line[-1:].isspace() else (words, "")


def offers_for(tree: Mapping[str, Any], names_of: Mapping[str, Any], words: Sequence[str], begun: str) -> list[Offer]:
    """Return the possible next words that begin as typed."""
    node, at, waits, first = tree, 0, None, ""
    for word in words:
        if waits is not None:
            waits = None
        elif word.startswith("-"):
            option = node.get("options", {}).get(word, {})
            waits = option if option.get("takes") else None
        elif word in node.get("commands", {}):
            node, at = node["commands"][word], 0
        elif "commands" in node and not node.get("otherwise"):
            return []  # a word that is no command here
        else:
            node = _default_command(node)
            at, first = at + 1, first or word
    if waits is not None:
        offers = _values(waits, names_of, first)
    elif begun.startswith("-"):
        offers = ((name, option.get("help", "")) for name, option in _default_command(node).get("options", {}).items())
    else:
        offers = _next(node, names_of, at, first)
    return [(word, what) for word, what in offers if word.startswith(begun)]


def _default_command(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the default command where none is named: `backstop flex CLUSTER`."""
    meant: Mapping[str, Any] = node.get("commands", {}).get(node.get("otherwise"), node)
    return meant


def _next(node: Mapping[str, Any], names_of: Mapping[str, Any], at: int, first: str) -> Iterator[Offer]:
    for name, command in node.get("commands", {}).items():
        yield name, command.get("help", "")
    arguments = _default_command(node).get("arguments", [])
    if arguments and (at < len(arguments) or arguments[-1].get("many")):
        yield from _values(arguments[min(at, len(arguments) - 1)], names_of, first)


def _values(of: Mapping[str, Any], names_of: Mapping[str, Any], first: str) -> Iterator[Offer]:
    """Yield the values of an option or argument: its words, or names of its kind.

    `first`: the argument before it, a hold's cluster; where none is typed yet, holds of all clusters are offered.
    """
    for word in of.get("words", ()):
        yield word, ""
    kind = of.get("kind", "")
    values = names_of.get(kind, {})
    if kind in ("holds", "windows"):
        values = values.get(first, []) if first else {hold for each in values.values() for hold in each}
    for name in sorted(values):
        what = values[name] if isinstance(values, dict) else ""
        yield name, what if isinstance(what, str) else ""


def _is_plain(word: str) -> bool:
    """Return whether the word needs no quotes in any shell.

    Other words are not offered: names come from other people, and shells evaluate what completion prints.
    """
    return all(char.isalnum() or char in "._-/@+,%:=" for char in word) and word.isprintable()


def _lines(shell: str, offers: Sequence[Offer]) -> Iterator[str]:
    for word, what in offers:
        hint = "".join(char if char.isalnum() or char in " ._-/,;" else " " for char in what).strip()
        if shell == "zsh":
            bare = word.replace(":", r"\\:")
            yield f'"{bare}":"{hint}"' if hint else f'"{bare}"'
        else:
            yield f"{word}\t{hint}" if shell == "fish" and hint else word


# --- what is kept ------------------------------------------------------------------------------


def _tree() -> Mapping[str, Any]:
    """Return commands and options; the file is made again if our sources have changed."""
    path, stamp = os.path.join(names.folder(), "commands.json"), _stamp()
    kept = names.read(path)
    if kept.get("stamp") != stamp:
        from cli.completion_tree import make_tree

        kept = {"stamp": stamp, "tree": make_tree()}
        names.write(path, kept)
    tree: Mapping[str, Any] = kept["tree"]
    return tree


def _stamp() -> list[float | str]:
    """Return a stamp that changes with any file that makes commands."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = (here, os.path.join(here, "commands"))
    files = [entry for place in places for entry in os.scandir(place) if entry.name.endswith((".py", ".json"))]
    return [here, float(len(files)), max(entry.stat().st_mtime for entry in files)]


def _look_again() -> None:
    """Start a process that looks up the names where they are old; it is not waited for."""
    tried = f"{names.file()}.tried"
    with contextlib.suppress(OSError):
        if names.age() < _OLD_SECONDS or _seconds_since(tried) < _PAUSE_SECONDS:
            return
        names.write(tried, {})
        main = f"{__name__.rpartition('.')[0]}.main"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("_BACK", "_TYPER"))}
        silent = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_RDWR, 0) for n in range(3)]
        program = [sys.executable, "-c", _LOOK.format(main=main)]
        os.posix_spawn(sys.executable, program, environment, file_actions=silent, setsid=True)


def _seconds_since(path: str) -> float:
    import time

    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return float("inf")
