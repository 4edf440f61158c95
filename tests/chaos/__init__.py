"""Chaos: many rollouts while everything around them breaks, and an independent count of what was lost.

`python -m tests.chaos --help`; docs/what-happens-when.md, "Chaos". The pieces: site.py (real processes and their
faults), proxy.py (the network in front of PostgreSQL), people.py (who asks for what), run.py (the schedule and
the evidence), check.py (the judge, which knows no product code).
"""
