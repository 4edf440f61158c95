"""The ledger's schema, revision by revision. `activities.adapters.ledger.database.upgrade` runs them.

A published revision is never edited: the book only goes forward, so there are no downgrades.
"""
