"""Options that several commands share, and the settings that people give with them."""

from __future__ import annotations

import getpass
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from models.errors import BadInput

if TYPE_CHECKING:
    from pydantic import BaseModel

    from models.cluster.policy import Policy
    from models.fleet.state import Wave

SET_UP = "Set up"
LOOK = "Look"
ROLL_OUT = "Roll out"


def opt(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """Return an option that takes a value, for `Annotated`. `names`: if it is not named as its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def flag(name: str, help: str, *names: str, **more: Any) -> Any:
    """Return an option that takes no value, for `Annotated`."""
    return typer.Option(name, *names, help=help, **more)


def arg(metavar: str, help: str, **more: Any) -> Any:
    """Return an argument, for `Annotated`."""
    return typer.Argument(metavar=metavar, help=help, **more)


def optional_cluster(cluster: str) -> str:
    """Check a cluster's name, which may be empty. Errors: BadInput."""
    if len(cluster) > 200 or any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in cluster):
        shown = cluster if len(cluster) <= 80 else f"{cluster[:80]}..."
        raise BadInput(f"CLUSTER must be a name: one line of at most 200 characters, not {shown!r}")
    return cluster


def needed_cluster(cluster: str) -> str:
    """Check a cluster's name. Errors: BadInput, also for an empty one: an unset variable must not mean anything."""
    if not cluster.strip():
        raise BadInput("CLUSTER is empty: name a cluster")
    return optional_cluster(cluster)


def check_name_or_all(context: typer.Context, parameter: typer.CallbackParam, cluster: str) -> str:
    """Check a cluster's name, which may be left out. Errors: BadInput, also for an empty one."""
    source = context.get_parameter_source(parameter.name or "")
    if not cluster.strip() and source is not None and source.name == "COMMANDLINE":
        raise BadInput("CLUSTER is empty: name a cluster, or leave it out")
    return optional_cluster(cluster)


Cluster = Annotated[str, arg("CLUSTER", "The cluster's name.", show_default=False, callback=needed_cluster)]
ClusterOrAll = Annotated[
    str, arg("CLUSTER", "The cluster's name. Default: all clusters.", show_default=False, callback=check_name_or_all)
]
Actor = Annotated[
    str,
    opt(
        "NAME",
        "Your name in the audit. Default: your login name. With BACKSTOP_URL, leave it out: the front records who "
        "logged in.",
        envvar="BACKSTOP_ACTOR",
    ),
]
ReasonOption = Annotated[str, opt("TEXT", "Why, in one sentence; the audit keeps it.")]
NeededReason = Annotated[str, opt("TEXT", "Why, in one sentence; the audit keeps it.", "--reason", show_default=False)]


def _act_alone(context: typer.Context, wanted: bool) -> bool:
    """Mark this command, and no later one, as given alone in an emergency."""
    from client.emergency import acts_alone

    if wanted:
        before = acts_alone.set(True)
        context.call_on_close(lambda: acts_alone.reset(before))
    return wanted


Once = Annotated[bool, flag("--once", "Show the status once and end.")]
EverySeconds = Annotated[str, opt("SECONDS", "Seconds between two updates.")]
Alone = Annotated[
    bool,
    flag(
        "--emergency",
        "Act alone in an emergency where the command needs a second person (docs/access.md). Only an "
        "approver may use it; all admins are notified.",
        callback=_act_alone,
    ),
]
AsJson = Annotated[bool, flag("--json", "Answer as JSON (docs/commands.md names the schema).")]
Buffer = Annotated[
    str,
    opt(
        "SHARE",
        "The share of the cluster to keep unpromised, such as 0.15; or the word health, which computes "
        "it from health history.",
    ),
]
MaxTier = Annotated[str, opt("TIER", "The deepest tier to cut: unallocated, unscheduled, idle or busy.")]
SettingsOption = Annotated[
    list[str] | None, opt("KEY=VALUE", "A field of the policy, such as notice=1d. Repeatable.", "--policy")
]


class Otherwise(TyperGroup):
    """A group with a default command: `backstop flex CLUSTER` shows it."""

    otherwise = ""
    alone = True
    """Whether the default command also runs when no word follows the group."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = (*self.commands, *self.get_help_option_names(ctx))
        meant = args[0] not in names if args else self.alone
        return super().parse_args(ctx, [self.otherwise, *args] if meant else args)


def examples(*lines: str) -> str:
    """Return a help text's last part: one example a line."""
    return "\n\n".join(("Examples:", *lines))


def actor_of(actor: str) -> str:
    """Return the named actor, else the login name."""
    if actor.strip():
        return actor.strip()
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        raise BadInput("--actor is missing, and this machine does not give a login name: give --actor") from None


def number(option: str, text: str, least: float, most: float) -> float:
    """Parse a number. Errors: BadInput naming the option and the value."""
    try:
        value = float(text)
    except ValueError:
        raise BadInput(f"{option} must be a number, not {text!r}") from None
    if not least <= value <= most:
        raise BadInput(f"{option} must be from {least:g} to {most:g}, not {text}")
    return value


@dataclass(frozen=True)
class Overlay:
    """Settings over clusters' own policies."""

    settings: dict[str, Any]
    spelt: Mapping[str, str] = field(default_factory=dict)
    """The own option, such as --buffer, of a setting that was given by it."""

    @property
    def for_snapshot(self) -> dict[str, Any]:
        """The settings that a snapshot needs: a buffer may use the health history, and use is read over its window."""
        return {key: value for key, value in self.settings.items() if key in ("buffer", "usage_window")}

    def apply_to(self, policy: Policy) -> Policy:
        """Return the policy with the settings laid over it. Errors: BadInput naming the option and the value."""
        from client.inputs.documents import read_policy

        return read_policy(policy, self.settings, dict(self.spelt))


def overlay_of(settings: list[str] | None, *, buffer: str = "", max_tier: str = "") -> Overlay:
    """Read settings for a policy. Errors: BadInput if one is not KEY=VALUE or is given twice."""
    laid, spelt = settings_given("--policy", settings or ()), {}
    for key, value, option in (("buffer", buffer, "--buffer"), ("max_tier", max_tier, "--max-tier")):
        if value:
            _once(laid, key, value, option)
            spelt[key] = option
    if laid.get("buffer") == "health":
        laid["buffer"] = {"health": {}}
    return Overlay(laid, spelt)


def settings_given(option: str, settings: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE settings. Errors: BadInput for another form, and for a setting that is given twice."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, sign, value = setting.partition("=")
        if not sign or not key.strip():
            raise BadInput(f"{option} takes KEY=VALUE, not {setting!r}")
        name = f"{option} {key.strip()}"
        _once(values, key.strip(), _value(value.strip(), name), name)
    return values


def pilots_of(options: Sequence[str]) -> tuple[str, ...]:
    """Check the pilots' names. Errors: BadInput for an empty name."""
    names = tuple(dict.fromkeys(name.strip() for names_text in options for name in names_text.split(",")))
    if "" in names:
        raise BadInput(f"--pilot {','.join(options)!r} has an empty name: give cluster names with commas between them")
    return names


def wave_of(text: str) -> Wave:
    """Parse a wave's number or tier. Errors: BadInput."""
    from models.fleet.state import WAVES, Wave

    choices = [w for w in WAVES if w is not Wave.AFTER]
    for wave in choices:
        if text in (str(wave.number), wave.value):
            return wave
    raise BadInput(f"--wave must be one of {', '.join(f'{w.number} ({w})' for w in choices)}, not {text!r}")


def _once(values: dict[str, Any], key: str, value: Any, option: str) -> None:
    if key in values:
        raise BadInput(f"{option} {value!r} is given together with {key}={values[key]!r}: give one of them")
    values[key] = value


def _value(text: str, option: str) -> Any:
    """Parse a value: a number, list or mapping where it reads as JSON, else the text itself: 10m, busy.

    Errors: BadInput naming the option where an object has a field twice.
    """
    from models.hashes import GivenTwice, each_once

    try:
        return json.loads(text, object_pairs_hook=each_once)
    except GivenTwice as error:
        raise BadInput(f"{option}: {error}") from None
    except (ValueError, RecursionError):
        return text


_ModelT = TypeVar("_ModelT", bound="BaseModel")


def check_model(model: type[_ModelT], **fields: Any) -> _ModelT:
    """Make a model to send to the server. Errors: BadInput naming the option and the value."""
    from pydantic import ValidationError

    from client.inputs.sentences import first_problem

    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise BadInput(f"--{first_problem(error, fields).text}") from None


def with_options(name: str, read: Callable[..., object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's parameter of this name with the options of `read`, which make its
    value.

    `read` declares them as a command does.
    """
    options = inspect.signature(read, eval_str=True).parameters

    def replace_parameter(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)

        @wraps(command)
        def run(**given: Any) -> None:
            value = read(**{option: given.pop(option) for option in options})
            command(**{name: value}, **given)

        parameters = [
            each for its in own.parameters.values() for each in (options.values() if its.name == name else [its])
        ]
        by_name = [each.replace(kind=each.KEYWORD_ONLY) for each in parameters]
        run.__signature__ = own.replace(parameters=by_name)  # type: ignore[attr-defined]  # Typer reads it
        return run

    return replace_parameter
