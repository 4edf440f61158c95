"""The name and schema version that every JSON answer has."""

from __future__ import annotations

from typing import Any, Literal, Self, cast

from pydantic import ConfigDict, Field

from models.base import Model

BY_SCHEMA: dict[str, type[JsonAnswer]] = {}
"""The answers by the names of their schemas."""


class JsonAnswer(Model):
    """An answer that names its schema and the version of it, `schema="plan"` for backstop.plan/1.

    Written with aliases: Python knows neither `schema` nor `hash` as a free name.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_: str = Field(default="", alias="schema")

    def __init_subclass__(cls, schema: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        if schema:  # beside the fields that are written here, before pydantic reads them
            version = f"backstop.{schema}/1"
            cls.__annotations__ = {**cls.__annotations__, "schema_": Literal[version]}
            cls.schema_ = Field(default=version, alias="schema")
            BY_SCHEMA[schema] = cls

    @classmethod
    def build_from(cls, value: Model, **more: Any) -> Self:
        """Return a value of ours as an answer, with these fields beside its own."""
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return cast("Self", cls.model_construct(**fields, **more))

    def as_json(self) -> Any:
        return self.model_dump(mode="json", by_alias=True)
