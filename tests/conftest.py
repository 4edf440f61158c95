"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# CI runs the same examples each time, so that a change is judged by what it changed. On a laptop every run
# looks elsewhere: that is where new cases are found; a case that was found joins the tests by hand.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")
