"""Imports pydantic and our models fast, for a command that ends in a moment."""

from __future__ import annotations

import os


def import_lightly() -> None:
    """Import pydantic and the base of our models, for a program that ends in a moment.

    A command uses a few of the models that an import brings along, so the others are not built. Pydantic's plugins
    are not looked for.
    """
    plugins = "PYDANTIC_DISABLE_PLUGINS"
    ours = plugins not in os.environ
    if ours:
        os.environ[plugins] = "__all__"
    from models.base import Documented, Model

    if ours:
        del os.environ[plugins]  # what this process starts or becomes has its own mind
    for base in (Model, Documented):  # each class has its own settings, made from those above it
        base.model_config["defer_build"] = True
