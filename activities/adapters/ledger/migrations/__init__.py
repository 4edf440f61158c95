"""The ledger's schema. `activities.adapters.ledger.database.upgrade` makes it, or brings an older one up to date.

A new ledger gets everything from `schema.py`, as models/ledger_tables.py has it, and counts as up to date. A ledger
that is there gets the revisions after its own. A published revision is never edited: the book only goes forward, so
there are no downgrades.
"""
