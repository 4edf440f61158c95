"""Options of every command that shows a list: its form, its rows and their order.

Rows are those of the JSON answer, and so are the names of their fields: `--sort -healthy_gpus`,
`--filter 'stage=roll*'`. A field of a value inside a row is named with a dot (`window.kind`); lists have no name.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

from cli.options import AsJson, opt, with_options
from models.errors import BadInput

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import RenderableType

_RowT = TypeVar("_RowT", bound="BaseModel")


class Form(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Output = Annotated[
    Form | None,
    opt(
        "FORM",
        "table (fits the terminal), wide (everything), json, yaml, or name (one name per line).",
        "--output",
        "-o",
        show_default="table",
    ),
]
Sort = Annotated[str, opt("FIELD", "Sort by this field of the JSON answer's rows; -FIELD: the largest first.")]
Filter = Annotated[
    list[str] | None,
    opt(
        "FIELD=VALUE",
        "Only rows that match: FIELD=VALUE or !=, where * matches anything, and for numbers >, <, >=, "
        "<=. Repeatable: all must match.",
        "--filter",
    ),
]


@dataclass(frozen=True)
class Listing:
    """The chosen form, rows and order of a list."""

    form: Form
    sort: str = ""
    filters: tuple[str, ...] = ()
    forms: bool = True
    """Whether the command has -o; a command that changes something has only --json."""

    @property
    def for_people(self) -> bool:
        return self.form in (Form.TABLE, Form.WIDE)

    @property
    def form_text(self) -> str:
        """The form as it was given."""
        return "--json" if self.form is Form.JSON else f"-o {self.form}"

    @property
    def options(self) -> list[str]:
        """The given options that choose or sort rows."""
        return ["--sort"] * bool(self.sort) + ["--filter"] * bool(self.filters)

    def of_one(self, named: str) -> None:
        """Refuse options that choose or sort rows, because the answer is one thing. Errors: BadInput."""
        if self.options:
            raise BadInput(
                f"{self.options[0]} is given together with {named}, but is only for lists: leave {self.options[0]} out"
            )

    def rows(self, rows: Iterable[_RowT], kind: type[_RowT]) -> list[_RowT]:
        """Return the chosen rows in the chosen order. Errors: BadInput naming the fields that there are."""
        selection = list(rows)
        if not self.options:
            return selection
        fields = fields_of(kind)
        for text in self.filters:
            holds = _condition(text, fields)
            selection = [one for one in selection if holds(one)]
        if not self.sort:
            return selection
        down, field = self.sort.startswith("-"), self.sort.removeprefix("-")
        path = _path("--sort", field, fields)
        with_value = [one for one in selection if _value(one, path) is not None]
        unknown = [one for one in selection if _value(one, path) is None]
        return [*sorted(with_value, key=lambda one: _value(one, path), reverse=down), *unknown]

    def tell(
        self,
        answer: Callable[[], Any],
        parts: Callable[[], Sequence[RenderableType]],
        names: Collection[str] | None,
        of: tuple[int, str] = (0, ""),
    ) -> None:
        """Print the answer in its form. `names`: those of its rows; None if they have none. `of`: how many rows
        there are before filters, and what each is. Errors: BadInput."""
        from cli.output import show, show_json, show_names, show_yaml
        from views.words import none_of

        match self.form:
            case Form.JSON:
                show_json(document(answer()))
            case Form.YAML:
                show_yaml(document(answer()))
            case Form.NAME if names is None:
                raise BadInput("-o name: these rows have no names; choose another form")
            case Form.NAME:
                show_names(names or ())
            case _:
                left = [none_of(*of)] if of[0] and not names else parts()
                show(*left, wide=self.form is Form.WIDE if self.forms else None)


def read_listing(output: Output = None, sort: Sort = "", filters: Filter = None, as_json: AsJson = False) -> Listing:
    """Read the options. Errors: BadInput if two of them contradict each other."""
    if as_json and output not in (None, Form.JSON):
        raise BadInput(f"--json is given together with -o {output}: give one of them")
    return Listing(Form.JSON if as_json else output or Form.TABLE, sort, tuple(filters or ()))


listed = with_options("how", read_listing)
"""Gives a command the options of a list, as its parameter `how`."""


def plain_listing(as_json: bool) -> Listing:
    """Return the form in which a command that changes something shows the result."""
    return Listing(Form.JSON if as_json else Form.TABLE, forms=False)


def tell(answer: BaseModel, parts: Callable[[], Sequence[RenderableType]], *, as_json: bool) -> None:
    """Print the result of a command that has no -o."""
    plain_listing(as_json).tell(lambda: answer, parts, None)


def document(answer: Any) -> Any:
    """Return an answer, which is a model of ours or a list of them, as JSON."""
    if isinstance(answer, list):
        return [document(one) for one in answer]
    return answer.model_dump(mode="json", by_alias=True) if not hasattr(answer, "as_json") else answer.as_json()


# --- fields ------------------------------------------------------------------------------------

_CONDITION = re.compile(r"([\w.]*)(!=|>=|<=|=|>|<)(.*)", re.DOTALL)
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


def fields_of(kind: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Return the path to each single value of a row, by its name in JSON."""
    from pydantic import BaseModel

    paths: dict[str, tuple[str, ...]] = {}
    for attribute, field in kind.model_fields.items():
        name = field.alias or attribute
        kinds = [k for k in (get_args(field.annotation) or (field.annotation,)) if k is not type(None)]
        if name == "schema" or _holds_many(field.annotation) or any(map(_holds_many, kinds)):
            continue
        inside = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        if inside is None:
            paths[name] = (attribute,)
        else:
            paths |= {f"{name}.{inner}": (attribute, *path) for inner, path in fields_of(inside).items()}
    return paths


def _holds_many(kind: Any) -> bool:
    return get_origin(kind) in (tuple, list, dict, set, frozenset) or kind in (tuple, list, dict)


def _path(option: str, field: str, fields: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    if field not in fields:
        raise BadInput(f"{option} {field!r} is not a field of these rows; they have {', '.join(sorted(fields))}")
    return fields[field]


def _value(row: BaseModel, path: tuple[str, ...]) -> Any:
    value: Any = row
    for attribute in path:
        value = getattr(value, attribute) if value is not None else None
    return value


def field_of(text: str) -> str:
    """Return the field of a --filter; empty if it has none."""
    match = _CONDITION.fullmatch(text)
    return "" if match is None else match[1]


def _condition(text: str, fields: dict[str, tuple[str, ...]]) -> Callable[[BaseModel], bool]:
    """Parse a filter. Errors: BadInput naming the filter."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise BadInput(f"--filter takes FIELD=VALUE or FIELD!=VALUE, and for numbers >, <, >= or <=, not {text!r}")
    field, sign, wanted = match.groups()
    path = _path("--filter", field, fields)
    if sign in _COMPARED:
        return _comparison(text, path, sign, wanted)
    return lambda row: matches(wanted, _text(row, field, path[0])) == (sign == "=")


def matches(pattern: str, text: str) -> bool:
    """Return whether the text matches the pattern, in which a * matches anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def _comparison(text: str, path: tuple[str, ...], sign: str, wanted: str) -> Callable[[BaseModel], bool]:
    try:
        least = float(wanted)
    except ValueError:
        raise BadInput(f"--filter {text}: {wanted!r} is not a number") from None

    def holds(row: BaseModel) -> bool:
        value = _value(row, path)
        if value is None:
            return False
        try:
            return _COMPARED[sign](float(value), least)
        except (TypeError, ValueError):
            raise BadInput(f"--filter {text}: the field's values are not numbers") from None

    return holds


def _text(row: BaseModel, field: str, attribute: str) -> str:
    """Return a field's value as JSON spells it; empty for null."""
    value: Any = row.model_dump(mode="json", by_alias=True, include={attribute})
    for name in field.split("."):
        value = None if value is None else value[name]
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
