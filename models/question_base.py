"""What a question to the ledger's desk is: a class with its arguments as fields, and the type of its answer."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from models.base import Model, in_one_sentence
from models.errors import BadInput

AnswerT_co = TypeVar("AnswerT_co", covariant=True)

QUESTIONS: dict[str, type[Question[Any]]] = {}
"""By their names on the wire."""


class Question(Model, Generic[AnswerT_co]):
    """One thing that is asked of the ledger. Errors: BadInput for arguments that no desk would take."""

    kind: ClassVar[str]

    @property
    def own_run(self) -> str:
        """Names the one run of the desk that carries it out, whoever asks it; empty: each is of its own."""
        return ""

    def __init__(self, **arguments: Any) -> None:
        try:
            super().__init__(**arguments)
        except ValidationError as error:
            raise BadInput(in_one_sentence(error)) from None  # as the desk would have answered

    def __init_subclass__(cls, kind: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        if kind:  # none: only the type of the answer was filled in
            cls.kind = kind
            QUESTIONS[kind] = cls

    @classmethod
    @cache
    def answers(cls) -> TypeAdapter[AnswerT_co]:
        """Of the answer: how it is written to the wire, and read."""
        filled = (base.__pydantic_generic_metadata__ for base in cls.__mro__ if issubclass(base, Question))
        return TypeAdapter(next(each["args"][0] for each in filled if each["args"]))
