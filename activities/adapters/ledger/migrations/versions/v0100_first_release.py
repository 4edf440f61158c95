"""The schema of the first release: `migrations/schema.py` makes it as a whole, so there is nothing to run here."""

revision = "0100"
down_revision = None
