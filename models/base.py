"""The base of all models: frozen, closed to unknown fields, strict about counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from models.texts import brief

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class Model(BaseModel):
    """An immutable value. Unknown fields are refused: a misspelt setting must not pass in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy as pydantic does, without values kept by `cached_property`: they may not hold for the changed copy."""
        copied = super().model_copy(update=update, deep=deep)
        if update and len(copied.__dict__) > len(type(self).model_fields):
            for name in copied.__dict__.keys() - type(self).model_fields.keys():
                del copied.__dict__[name]
        return copied

    def but(self, **changes: Any) -> Self:
        """Return the same value with these fields changed. They are not validated: they come from our own code."""
        if unknown := changes.keys() - type(self).model_fields.keys():
            raise AttributeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return self.model_copy(update=changes)


class Documented(Model):
    """A model that people write in a file: its fields' docstrings go into its schema and docs/fleet-file.md.

    They are read on demand: pydantic's `use_attribute_docstrings` would read the sources whenever a program starts.
    """

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Return the docstring of each field that has one, by its name."""
        return {
            name: text
            for model in reversed(cls.__mro__)
            if issubclass(model, Documented)
            for name, text in _field_docstrings(model).items()
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        json_schema = handler(schema)
        properties = handler.resolve_ref_schema(json_schema).get("properties", {})
        for name, text in cls.field_docs().items():
            field = cls.model_fields[name]
            for key in {name, field.alias, field.serialization_alias} & properties.keys():
                properties[key] = {**properties[key], "description": text}
        return json_schema


@cache
def _field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the fields that the class itself declares."""
    import ast
    import inspect

    (body,) = ast.parse(inspect.cleandoc(f"\n{inspect.getsource(model)}")).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def find_repeated(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield each name that stands earlier in the list too, with its place."""
    seen = set[str]()
    for place, name in enumerate(names):
        if name in seen:
            yield place, name
        seen.add(name)


def fault_at(path: tuple[str | int, ...], text: str) -> PydanticCustomError:
    """Return a validator's ValueError with the path of the faulty part, relative to the validated value."""
    return PydanticCustomError("fault_at", "{text}", {"text": text, "path": path})


def in_one_sentence(error: ValidationError) -> str:
    """Return the first fault with its place and value, and how many more there are: for input over the wire."""
    many = error.error_count() > 100  # to tell each with its value would take a workflow task's time
    faults = error.errors(include_url=False, include_context=False, include_input=not many)
    place = ".".join(str(step) for step in faults[0]["loc"])
    input_text = "" if many else brief(faults[0]["input"])
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    text = f"{place + ': ' if place else ''}{faults[0]['msg'].removeprefix('Value error, ')}"
    has_value = text.endswith((f": {input_text}", f", not {input_text}"))
    value = f" (given: {input_text})" if 0 < len(input_text) <= 80 and not has_value else ""
    return f"{text if len(text) <= 600 else text[:600] + ' ...'}{value}{more}"


def _whole(value: Any) -> Any:
    """Refuse what only looks like a count: text, fractions, NaN, true and false."""
    if type(value) is not int:  # isinstance is slow in the workflow sandbox, and true is an int to it
        raise ValueError(f"must be a whole number, not {brief(value)}")
    return value


def of_ordinary_size(settings: dict[str, Any]) -> dict[str, Any]:
    """Refuse settings that are too large to be handed on in a message."""
    if len(json.dumps(settings)) > 20_000:
        raise ValueError("must be at most 20,000 characters long when written as JSON")
    return settings


MOST_GPUS = 10**7
"""The largest single count. A larger one is refused as a typing mistake."""

GpuCount = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MOST_GPUS)]
"""Whole GPUs, zero or more."""

Count = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
PositiveCount = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MOST_GPUS)]

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A name of a cluster, island or team. Compared by code point."""


def _storable(value: str) -> str:
    if "\0" in value:  # PostgreSQL's texts cannot hold it
        raise ValueError(f"must not contain a NUL character: {brief(value)}")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError(f"must be valid Unicode text, not {brief(value)}")
    return value


Text = Annotated[str, AfterValidator(_storable)]
"""Text that every database and every message can hold. Each use sets its own length."""

NAME_BYTES = 600
"""The most UTF-8 bytes of a name. Temporal's attributes hold 2,048 bytes, and JSON may write 4 bytes as 12."""


def of_ordinary_bytes(name: str) -> str:
    """Return the name if it fits wherever names go. Errors: ValueError."""
    size = len(name.encode(errors="replace"))
    if size > NAME_BYTES:
        raise ValueError(f"must be at most {NAME_BYTES} bytes long, but its {len(name)} characters take {size} bytes")
    return name


NameGiven = Annotated[Name, AfterValidator(of_ordinary_bytes)]
"""A name in input. Elsewhere it is a `Name`: measuring each again would take a workflow task's time."""

ActorGiven = Annotated[str, Field(max_length=200), AfterValidator(_storable), AfterValidator(of_ordinary_bytes)]
"""The person who gives a command, or for whom it is given, in input."""

Words = Annotated[str, Field(max_length=2000), AfterValidator(_storable)]
"""Free text that people write."""


def exact_fraction(value: Any) -> Fraction:
    """Return the number that a person wrote, exactly: 0.15 is 3/20 and not its nearest binary float.

    Errors: ValueError for what is not a finite number.
    """
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(f"must be a number, not {brief(value)}")
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"must be a number, not {brief(value)}") from None
    if not number.is_finite():
        raise ValueError(f"must be a finite number, not {value!r}")
    if number and abs(number.adjusted()) > 30:  # its fraction would fill the memory
        raise ValueError(f"must be a number with an exponent of at most 30, not {brief(value)}")
    return Fraction(number)


def _share(value: Any) -> Fraction:
    if isinstance(value, str) and "/" in value:  # our own serialised form
        try:
            value = Fraction(value[:100])
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"must be a number, not {value[:100]!r}") from None
    number = exact_fraction(value)
    if not 0 <= number < 1:
        raise ValueError(f"must be at least 0 and below 1, not {str(value)[:120]}")
    return number


def fraction_text(number: Fraction) -> str:
    """Return a decimal text when the fraction has one (3/20 is "0.15"), else numerator/denominator."""
    rest = number.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest != 1:
        return f"{number.numerator}/{number.denominator}"
    return format((Decimal(number.numerator) / Decimal(number.denominator)).normalize(), "f")


FRACTION_ANSWERED = WithJsonSchema(
    {"type": "string", "description": "an exact number, as a decimal or a fraction"}, mode="serialization"
)

Share = Annotated[
    Fraction,
    BeforeValidator(_share),
    PlainSerializer(fraction_text, return_type=str),
    WithJsonSchema({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, mode="validation"),
    FRACTION_ANSWERED,
]
"""An exact number in [0, 1). Serialised as text, so that no float ever rounds it."""

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST = timedelta(days=3660)


def _span(number: Fraction, unit: int, value: Any) -> timedelta:
    if abs(number) * unit > 10**12:  # more than a timedelta holds
        raise ValueError(f"a duration cannot be longer than ten years: {brief(value)}")
    return timedelta(seconds=float(number) * unit)


def parse_duration(value: Any) -> timedelta:
    """Parse `30s`, `10m`, `24h`, `14d`, `2w`, or a number of seconds.

    Errors: ValueError for anything else, negative ones included.
    """
    if isinstance(value, timedelta):
        result = value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = _span(exact_fraction(value), 1, value)
    elif isinstance(value, str) and value[-1:] in _UNITS:
        try:
            number = exact_fraction(value[:-1])
        except ValueError:
            raise ValueError(f"must be a duration such as 30s, 10m, 24h or 14d, not {brief(value)}") from None
        result = _span(number, _UNITS[value[-1]], value)
    else:
        raise ValueError(f"must be a duration such as 30s, 10m, 24h or 14d, not {brief(value)}")
    if result < timedelta(0):
        raise ValueError(f"a duration cannot be negative: {brief(value)}")
    if result > _LONGEST:
        raise ValueError(f"a duration cannot be longer than ten years: {brief(value)}")
    return result


def duration_text(value: timedelta) -> str:
    """Return the shortest exact text: 3d, 24h (below two days), 90m, 0.5s."""
    seconds = value.total_seconds()
    for unit, size, least in (("d", 86400, 2 * 86400), ("h", 3600, 3600), ("m", 60, 60)):
        if seconds >= least and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:g}s" if round(seconds, 6) == float(f"{seconds:g}") else f"{seconds!r}s"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(duration_text, return_type=str),
    Field(json_schema_extra={"type": "string", "examples": ["30s", "10m", "24h", "14d"]}),
]


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(f"needs a time zone (for example a final Z): {value.isoformat()}")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"must lie between the years 1 and 9999 in UTC, not {value.isoformat()}") from None


Time = Annotated[datetime, AfterValidator(_aware)]
"""An instant, kept in UTC. A time without a zone is refused."""


class Since(Model):
    """A time since which something holds without a break. `or_earlier`: it held already at the first time looked at."""

    at: Time
    or_earlier: bool = False

    @property
    def text(self) -> str:
        return f"since {self.at:%Y-%m-%d %H:%MZ}{' or earlier' * self.or_earlier}"
