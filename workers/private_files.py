"""Makes files that only this user can read: they hold quotas, addresses with tokens, and what people wrote."""

from __future__ import annotations

import os
import stat
from pathlib import Path

UMASK = 0o077
_OURS = (
    "ledger.db*",
    "notices.jsonl*",
    "notices.jsonl.turns/*",
    "temporal",
    "temporal/*",
    "temporal.json",
    "keys",
    "keys/*",
    "seals",
    "seals/*",
)
_USUAL = {0o644: 0o600, 0o664: 0o600, 0o755: 0o700, 0o775: 0o700}
"""By usual mode, the private mode that replaces it. Any other mode was chosen and stays."""


def keep_private(home: Path) -> None:
    """Make the folder, and keep others from reading what this process and its children write from now on.

    Files that an earlier Backstop left there with the usual mode are closed too; other files there are left alone.
    """
    os.umask(UMASK)
    home.mkdir(parents=True, exist_ok=True)
    for pattern in _OURS:
        for path in home.glob(pattern):
            _close(path)


def _close(path: Path) -> None:
    try:
        status = path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        ours = status.st_uid == os.getuid() and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))
        if ours and mode in _USUAL:
            path.chmod(_USUAL[mode])
    except FileNotFoundError:
        return  # a log that a server has just put away
