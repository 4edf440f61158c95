"""The base of a question to the ledger's desk: a class with its arguments as fields, and the type of its answer."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from models.base import Model, in_one_sentence
from models.errors import BadInput

AnswerT_co = TypeVar("AnswerT_co", covariant=True)

QUESTIONS: dict[str, type[Question[Any]]] = {}
"""Every question class, by its name on the wire."""


class Question(Model, Generic[AnswerT_co]):
    """A question to the ledger. Errors: BadInput for arguments that no desk would take."""

    kind: ClassVar[str]

    @property
    def own_run(self) -> str:
        """The name of the single run of the desk that answers it, whoever asks; empty: each asking has its own run."""
        return ""

    def __init__(self, **arguments: Any) -> None:
        try:
            super().__init__(**arguments)
        except ValidationError as error:
            raise BadInput(in_one_sentence(error)) from None  # the desk's own answer

    def __init_subclass__(cls, kind: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        if kind:  # empty: pydantic only filled in the type of the answer
            cls.kind = kind
            QUESTIONS[kind] = cls

    @classmethod
    @cache
    def answers(cls) -> TypeAdapter[AnswerT_co]:
        """Return the adapter that writes the answer to the wire, and reads it."""
        filled = (base.__pydantic_generic_metadata__ for base in cls.__mro__ if issubclass(base, Question))
        return TypeAdapter(next(each["args"][0] for each in filled if each["args"]))
