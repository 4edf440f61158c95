"""`backstop docs`: the pages that help texts and errors cite, wherever Backstop is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.lazy import command
from cli.options import LOOK, arg
from models.errors import BadInput

PAGES = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = PAGES.parent / "examples"


@command(LOOK, "backstop docs", "backstop docs commands", "backstop docs examples/fleet.yaml > fleet.yaml")
def docs(
    name: Annotated[str, arg("NAME", "The page or example. Default: list all pages.", show_default=False)] = "",
) -> None:
    """Print a page of the documentation, or an example file, by the name that help texts and errors use.

    For example: docs/reading.md, docs/adr/0003, examples/fleet.yaml. Pages are Markdown: `backstop docs commands |
    less`.
    """
    from cli.output import show, write
    from views.words import row, table

    if name:
        write("-", "", page(name).read_text(encoding="utf-8"))
        return
    rows = table("=NAME", "PAGE")
    for path in sorted(PAGES.glob("*.md")):
        row(rows, path.stem, title(path))
    row(rows, "adr", title(PAGES / "adr" / "README.md"))
    show(rows)


def title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def page(name: str) -> Path:
    """Return the file of a page or example: commands, docs/commands.md, adr/0003, examples/fleet.yaml.

    Errors: BadInput.
    """
    if name in {f"examples/{path.name}" for path in EXAMPLES.glob("*.*")}:
        return EXAMPLES.parent / name
    short = name.partition("#")[0].removeprefix("docs/").removesuffix(".md").rstrip("/")
    short = "adr/README" if short == "adr" else short
    every = {str(path.relative_to(PAGES).with_suffix("")): path for path in sorted(PAGES.rglob("*.md"))}
    paths = [path for key, path in every.items() if key == short or (key.startswith(f"{short}-") and "/" in short)]
    if len(paths) != 1:
        names = ", ".join(key for key in every if "/" not in key)
        raise BadInput(f"NAME must be one of {names}, adr/ and a number, or examples/ and a file, not {name!r}")
    return paths[0]
