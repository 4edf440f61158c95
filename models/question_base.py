"""The base of a question to the ledger's desk, a class with its arguments as fields and the type of its answer; and how
questions and answers travel.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from models.access.tickets import Ticketed
from models.base import ActorGiven, Model, in_one_sentence
from models.errors import BadInput
from models.texts import brief

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

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
        return TypeAdapter(cls._answer_type())

    @classmethod
    def read(cls, result: Any) -> AnswerT_co:
        """Return the answer of this result. Errors: ValidationError.

        Nothing is often the answer, and to read nothing no model is imported or built.
        """
        answer: Any = cls._answer_type()
        if result is None and type(None) in get_args(answer):
            return None  # type: ignore[return-value]
        if result == [] and get_origin(answer) is tuple:
            return ()  # type: ignore[return-value]
        return cls.answers().validate_python(result)

    @classmethod
    def _answer_type(cls) -> Any:
        filled = (base.__pydantic_generic_metadata__ for base in cls.__mro__ if issubclass(base, Question))
        return next(each["args"][0] for each in filled if each["args"])


class _Later:
    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(getattr(import_module(self._module), self._name))


def later(module: str, name: str) -> Any:
    """Return the type of a model that is imported when its validator is first needed."""
    return Annotated[Any, _Later(module, name)]


class DeskRequest(Ticketed):
    """A question from a person on the wire. The workflow's history records who asked."""

    kind: str
    actor: ActorGiven = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    payload: str = Field(default="", max_length=1_500_000)
    """Base64 of zlib-compressed JSON, for parts of a large document."""

    @field_validator("kind")
    @classmethod
    def _is_a_question(cls, kind: str) -> str:
        if kind not in QUESTIONS:
            import_module("models.questions")  # all of them
        if kind not in QUESTIONS:
            raise ValueError(f"must be one of {', '.join(QUESTIONS)}, not {brief(kind)}")
        return kind

    @field_validator("arguments")
    @classmethod
    def _has_numbers_alone(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(arguments, allow_nan=False)
        except ValueError:
            raise ValueError("must contain only finite numbers: JSON has no NaN") from None
        return arguments


class DeskAnswer(Model):
    result: Any = None
