"""Imports pydantic and our models fast, for a command that ends in a moment."""

from __future__ import annotations

import os


def import_lightly() -> None:
    """Pydantic and the base of our models, in the way of a program that ends in a moment.

    Of all models that an import brings along a command reads or writes a few: the others are not built. And nobody's
    plugins for Pydantic are looked for.
    """
    plugins = "PYDANTIC_DISABLE_PLUGINS"
    ours = plugins not in os.environ
    if ours:
        os.environ[plugins] = "__all__"
    from models.base import Model

    if ours:
        del os.environ[plugins]  # what this process starts or becomes has its own mind
    Model.model_config["defer_build"] = True
