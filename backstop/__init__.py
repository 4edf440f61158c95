"""The one name that Backstop takes in an environment; what it is made of lies below, and nobody else imports that.

In the repository `models`, `cli` and the others stand at the top level. In a wheel they lie in `_app`, a folder that is
no package and on nobody's path (docs/adr/0044). A process of ours puts it first on its own path, so that a `models` of
somebody else's in the same environment is not ours; and a process of theirs never has it there.
"""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
ROOT = _HERE / "_app" if (_HERE / "_app" / "cli").is_dir() else _HERE.parent
"""The folder that holds `models`, `cli`, `docs` and the others."""


def at_home() -> None:
    """Let this process import our packages from now on, and not others of the same names.

    One that is imported already (by a .pth file, say) is forgotten: this process is ours.
    """
    sys.path[:] = [str(ROOT), *(entry for entry in sys.path if entry != str(ROOT))]
    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {__name__}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ours and not str(getattr(module, "__file__", "") or "").startswith(f"{ROOT}/"):
            del sys.modules[name]


def main() -> None:
    """The command line."""
    at_home()
    from cli.main import main as of_cli

    of_cli()
