"""`backstop backtest`: the record of each buffer policy on health history, as tables, JSON, CSV or pictures."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from cli.lazy import command
from cli.list_options import Listing, listed
from cli.options import LOOK, arg, number, opt
from models.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from models.buffers.backtest import Decide, Promised, Record
    from models.buffers.hourly_health import Series
    from models.cluster.derived_buffer import HealthTerms

_FILE = arg("FILE", "Health history as CSV, gzipped or not (-: stdin).", show_default=False)
TargetOption = Annotated[str, opt("SHARE", "The share of hours in which all promised GPUs must be healthy.")]
GpusPerNode = Annotated[str, opt("GPUS", "GPUs per node, for a file that counts GPUs and not nodes.", show_default="8")]
_FIXED = "fixed-"
_MOST_FIXED = 0.99


class PolicyOption(StrEnum):
    """Policies, by their names in models.buffers.backtest.policies."""

    FIXED_5 = "fixed-5"
    FIXED_10 = "fixed-10"
    FIXED_15 = "fixed-15"
    FIXED_20 = "fixed-20"
    BINOMIAL = "binomial"
    TRAILING_QUANTILE = "trailing-quantile"
    TRAILING_MAX = "trailing-max"
    HEALTH = "health"


@command(
    LOOK,
    "backstop backtest health.csv",
    "backstop backtest health.csv.gz --cluster train-1 --horizon 4 --html record.html",
    "backstop backtest health.csv --policy health --fixed 0.07,0.12 --decisions decisions.csv",
)
@listed
def backtest(
    file: Annotated[str, _FILE],
    horizon: Annotated[
        str, opt("WEEKS", "How many weeks a promise lasts; to compare several, put commas between them.")
    ] = "1,4",
    policy: Annotated[
        list[PolicyOption] | None,
        opt(
            "POLICY",
            "Only this buffer policy (docs/buffers.md): fixed-5, fixed-10, fixed-15, fixed-20, "
            "binomial, trailing-quantile, trailing-max or health. Repeatable.",
            show_default=False,
        ),
    ] = None,
    fixed: Annotated[
        str, opt("SHARES", "Also compare these fixed buffers, such as 0.07,0.12.", show_default=False)
    ] = "",
    cluster: Annotated[list[str] | None, opt("NAME", "Only this cluster. Repeatable.", show_default=False)] = None,
    target: TargetOption = "0.999",
    floor: Annotated[str, opt("SHARE", "The buffer where the history is too short or too old.")] = "0.15",
    gpus_per_node: GpusPerNode = "",
    html: Annotated[str, opt("FILE", "Write one HTML page with plots and tables.")] = "",
    png: Annotated[str, opt("FILE", "Write the plots as a PNG picture.")] = "",
    csv: Annotated[str, opt("FILE", "Write all figures as CSV (-: stdout).")] = "",
    decisions: Annotated[str, opt("FILE", "Write each week's promises as CSV (-: stdout).")] = "",
    *,
    how: Listing,
) -> None:
    """Show what each buffer policy would have promised and kept on a health history, week by week.

    A policy sees only the rows before its decision. An hour is broken if healthy GPUs fell below the promise at
    any moment in it. A week for which a policy promised nothing counts as a buffer of 1. From the file of
    --decisions anybody can compute the results again.
    """
    outputs = {"--csv": csv, "--decisions": decisions, "--html": html}
    _one_to_standard_output(outputs, how)
    weeks = weeks_of(horizon)
    terms = terms_of(target, floor)
    decide = _decide([p.value for p in policy or PolicyOption], _shares(fixed), terms)
    from client.inputs.health_series import read_series

    series = named_series(read_series(file, node_of(gpus_per_node)), cluster or [], file)
    records, promised = _records(series, decide, weeks)
    _answer(series, records, promised, outputs, png=png, how=how)


def _one_to_standard_output(outputs: Mapping[str, str], how: Listing) -> None:
    claims = [f"{option} -" for option, file in outputs.items() if file == "-"] + [how.form_text] * (not how.for_people)
    if len(claims) > 1:
        raise BadInput(f"{claims[0]} and {claims[1]} both write to standard output: give one of them")


def _shares(text: str) -> list[Fraction]:
    """Parse the buffers of --fixed. Errors: BadInput."""
    from models.base import exact_fraction

    words = text.split(",") if text else []
    return [exact_fraction(_decimal("--fixed", word, 0, _MOST_FIXED)) for word in words]


def _decide(names: list[str], shares: list[Fraction], terms: HealthTerms) -> dict[str, Decide]:
    """Return the chosen policies, each once; several fixed ones come in order of size."""
    from models.buffers.backtest import flat, policies

    named = policies(terms)
    chosen = {name: named[name] for name in names} | flat(shares)
    if not shares:
        return chosen
    fixed = sorted((n for n in chosen if n.startswith(_FIXED)), key=lambda n: float(n.removeprefix(_FIXED)))
    return {name: chosen[name] for name in (*fixed, *(n for n in chosen if n not in fixed))}


def weeks_of(text: str) -> tuple[int, ...]:
    """Parse the horizons, each once. Errors: BadInput."""
    weeks = []
    for word in text.split(","):
        value = number("--horizon", word.strip().removesuffix("w"), 1, 52)
        if value != int(value):
            raise BadInput(f"--horizon must be whole weeks, not {word.strip()}")
        weeks.append(int(value))
    return tuple(dict.fromkeys(weeks))


def terms_of(target: str, floor: str, base: HealthTerms | None = None) -> HealthTerms:
    """Return a promise's terms: the given options over `base`. Errors: BadInput naming the option and the value."""
    from models.base import exact_fraction
    from models.cluster.derived_buffer import TERMS

    terms = base or TERMS
    if target:
        terms = terms.model_copy(update={"target": exact_fraction(_decimal("--target", target, 0.5, 0.99999))})
    if floor:
        terms = terms.model_copy(update={"floor": exact_fraction(_decimal("--floor", floor, 0, float(terms.most)))})
    return terms


def node_of(gpus_per_node: str) -> int | None:
    """Return how many GPUs fail together; None: the option was not given. Errors: BadInput."""
    if not gpus_per_node:
        return None
    size = number("--gpus-per-node", gpus_per_node, 1, 1000)
    if size != int(size):
        raise BadInput(f"--gpus-per-node must be a whole number, not {gpus_per_node}")
    return int(size)


def _decimal(option: str, text: str, least: float, most: float) -> str:
    number(option, text, least, most)
    return text.strip()


def named_series(
    series: tuple[Series, ...], names: list[str], file: str, option: str = "--cluster"
) -> tuple[Series, ...]:
    """Return the series with these names, or all without a name. Errors: BadInput."""
    by_name = {one.cluster: one for one in series}
    for name in names:
        if name not in by_name:
            names_in_file = ", ".join(list(by_name)[:8]) + (" and more" if len(by_name) > 8 else "")
            raise BadInput(f"{option} {name!r} is not in {file}; it has {names_in_file}")
    return tuple(by_name[name] for name in dict.fromkeys(names)) if names else series


def _records(
    series: tuple[Series, ...], policies: Mapping[str, Decide], weeks: tuple[int, ...]
) -> tuple[list[Record], Promised]:
    from cli.output import progress
    from models.buffers.backtest import promises, record

    records: list[Record] = []
    promised: Promised = {}
    with progress("back-testing", len(series) * len(weeks) * len(policies)) as done:
        for one in series:
            for horizon in weeks:
                for name, decide in policies.items():
                    weekly = promised[one.cluster, horizon, name] = promises(one, decide, horizon)
                    records.append(record(one, name, weekly, horizon))
                    done(len(records), len(series) * len(weeks) * len(policies))
    return records, promised


def _answer(
    series: tuple[Series, ...],
    records: list[Record],
    promised: Promised,
    outputs: Mapping[str, str],
    *,
    png: str,
    how: Listing,
) -> None:
    from cli.output import show, write
    from views.backtest import as_csv, decisions_csv, parts
    from views.words import line

    if outputs["--html"] or png:
        from cli.pages.backtest import page, picture

        if png:
            picture(png, series, promised)
        if outputs["--html"]:
            write(outputs["--html"], "--html", page(series, records, promised))
    if outputs["--csv"]:
        write(outputs["--csv"], "--csv", as_csv(records))
    if outputs["--decisions"]:
        write(outputs["--decisions"], "--decisions", decisions_csv(series, promised))
    if "-" in outputs.values():
        return
    if how.for_people and (written := [file for file in (*outputs.values(), png) if file]):
        show(line(("Written", "bold"), f": {', '.join(written)}"))
    from models.buffers.backtest import Record

    chosen = how.rows(records, Record)
    how.tell(
        lambda: chosen, lambda: parts(chosen, series), [record.policy for record in chosen], (len(records), "record")
    )
