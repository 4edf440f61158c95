"""The ports: all that Backstop needs from outside. Adapters translate foreign errors into models.errors.

Every call blocks, so activities run it in a thread, and may raise Unavailable: retry with the same arguments.
"""
