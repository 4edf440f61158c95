"""cli/commands.json: the list of commands for the help, from the commands' own modules.

`python -m tests.docs.commands_list cli/commands.json` (`make docs`) writes it again; a test fails when that is needed.
Commands stay in the order of the file; a new one comes last.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cli.lazy import Listed, commands_of

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path.stem
    for path in (ROOT / "cli" / "commands").glob("*.py")
    if path.stem != "__init__" and not path.stem.startswith("fleet_")
)
"""Those of `fleet_` add to the group `fleet`, which is one of the others."""


def with_every_command(text: str) -> str:
    """Return the list with each command's module, panel, and the first paragraph of its help."""
    listed = {
        name: Listed(module, command.rich_help_panel, " ".join(command.help.split("\n\n")[0].split()))
        for module in MODULES
        for name, command in commands_of(module).items()
    }
    names = [*(name for name in json.loads(text) if name in listed), *listed]
    return json.dumps({name: listed[name] for name in dict.fromkeys(names)}, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_every_command(path.read_text(encoding="utf-8")), encoding="utf-8")
