"""The JSON answers of `backstop bringup`, beside cli/json_answers.py."""

from __future__ import annotations

from cli.json_answer_base import JsonAnswer
from models.base import Name
from models.bringup.entry import BringupEntry
from models.bringup.messages import BringupAnswer, BringupCommandAnswer, BringupRow
from models.bringup.recipe import ClusterRecipe


class RecipesAnswer(JsonAnswer, schema="recipes"):
    """Recipes, and the entries that were checked against them."""

    recipes: tuple[ClusterRecipe, ...]
    entries: tuple[BringupEntry, ...]


class BringupsEnteredAnswer(JsonAnswer, schema="bringups-entered"):
    """The result for each entry."""

    entered: tuple[BringupAnswer, ...]


class BringupsAnswer(JsonAnswer, schema="bringups"):
    """All bring-ups."""

    bringups: tuple[BringupRow, ...]


class BringupCommandedAnswer(BringupCommandAnswer, JsonAnswer, schema="bringup-command"):
    """The result of a command to a bring-up."""

    cluster: Name
