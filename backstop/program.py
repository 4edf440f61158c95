"""One of Backstop's own modules, run as `python -m` would run it: `python -P backstop/program.py workers.main`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_HERE = Path(__file__).resolve()


def program(module: str) -> list[str]:
    """The beginning of its command line. -P: a folder `models` where the user stands is not ours."""
    return [sys.executable, "-P", str(_HERE), module]


if __name__ == "__main__":
    sys.path.insert(0, str(_HERE.parents[1]))  # this file's own `backstop` and no other
    from backstop import at_home

    del sys.path[0]
    at_home()
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # while it was still being imported: nothing is begun
        sys.exit(130)
