"""`python -m backstop`: the command line."""

from __future__ import annotations

from backstop import main

if __name__ == "__main__":
    main()
