"""Checks members of a fleet rollout by the ledger: its terms as they were signed, and which its abort ended.

Source: docs/design.md, "Identity and rights"; docs/adr/0071.
"""

from __future__ import annotations

from typing import Protocol

from activities.ports.registry import RegistryPort
from activities.ports.warrants import WarrantPort
from models.access.warrants import Warrant
from models.cluster.fleet_file import merged_policy
from models.errors import Refusal
from models.fleet.messages import FleetLaunch
from models.fleet.pace_changes import BUDGET, budget_of, pace_after
from models.rollout.effect_table import INVERSE
from models.rollout.messages import LaunchRequest

ENDS_ONE = frozenset({"rollout.abort", "rollout.rollback", "rollout.close"})


class SignedWords(Protocol):
    """activities/tickets/warrants.py. `good`: returns whether its signature and message are valid, checked again."""

    @property
    def book(self) -> WarrantPort: ...

    def live(self, subject: str, *commands: str) -> Warrant | None: ...

    def is_good(self, warrant: Warrant) -> bool: ...


def inherited_nonce(parent: Warrant, command: str, subject: str) -> str:
    """Return the nonce of the row by which a machine acts on a word."""
    return f"{parent.nonce}/{command}/{subject}"


def member_launched(launch: LaunchRequest, approval: Warrant, signed: SignedWords, registry: RegistryPort) -> Warrant:
    """Check that the launch is one of the fleet's, by its own terms; return the fleet's launch. Errors: Refusal."""
    begun = signed.live(launch.fleet, "fleet.launch")
    if begun is None or launch.cluster not in approval.content.get("clusters", ()):
        raise Refusal(f"{launch.cluster} is not in the approved plan of fleet rollout {launch.fleet}")
    fleet = FleetLaunch.model_validate(begun.message)
    theirs, ours = ({k: v for k, v in policy.items() if k not in BUDGET} for policy in (launch.policy, fleet.policy))
    member, _ = registry.of_fleet(launch.fleet).get(launch.cluster, (None, None))
    if member is not None and member.rollout != launch.rollout and _was_ended_by_person(member.rollout, signed.book):
        raise Refusal(
            f"somebody ended rollout {member.rollout} of {launch.cluster}, so the fleet rollout does not open another"
        )
    if theirs != ours or launch.adopt or (fleet.shadow and not launch.shadow):
        raise Refusal(f"the launch of {launch.cluster} has settings other than those of fleet rollout {launch.fleet}")
    if signed.book.warrant(inherited_nonce(approval, "rollout.launch", launch.rollout)) is None:
        _check_budget(launch, fleet, signed, registry)
    return begun


def _was_ended_by_person(rollout: str, book: WarrantPort) -> bool:
    return any(not one.inherits for one in book.warrants(rollout, *sorted(ENDS_ONE)))


def _check_budget(launch: LaunchRequest, fleet: FleetLaunch, signed: SignedWords, registry: RegistryPort) -> None:
    """Check that it may move no more than the signed pace and the cluster's policy allow. Errors: Refusal."""
    changes = (one for one in signed.book.warrants(fleet.fleet, "fleet.pace") if one.live and signed.is_good(one))
    pace = pace_after(fleet.pace, (one.message.get("pace", {}) for one in changes))
    policy = merged_policy(registry.facts(launch.cluster).policy, fleet.policy)
    for name, most in budget_of(policy, pace).items():
        asked = launch.policy.get(name)
        if not isinstance(asked, int) or asked > most:
            raise Refusal(
                f"{name} of {launch.cluster} may be at most {most} in fleet rollout {fleet.fleet}, not {asked}"
            )


def find_fleet_abort(rollout: str, fleet: str, signed: SignedWords) -> Warrant | None:
    """The abort of its fleet rollout that has ended this member, whether or not anybody told the member."""
    aborts = signed.book.warrants(fleet, "fleet.abort") if fleet else ()
    return next(
        (one for one in reversed(aborts) if signed.is_good(one) and ends_member(one, rollout, signed.book)), None
    )


def ends_member(abort: Warrant, rollout: str, book: WarrantPort) -> bool:
    """Return whether the abort ends this member: with undo all, without those that had changed nothing by then.

    An adopted member is not ended: it is its adopter's.
    """
    launches = book.warrants(rollout, "rollout.launch")
    if any(one.live and not one.inherits and one.admitted_at > abort.admitted_at for one in launches):
        return False
    receipts = () if abort.message.get("undo") else book.receipts(rollout)
    return not any(one.kind in INVERSE and one.at <= abort.admitted_at for one in receipts)
