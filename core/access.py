"""Who may do what: the roles, the actions that need one, and the limits of a hosted dashboard.

A viewer sees everything. A runner also starts runs and does with their own whatever can be done with a run.
An owner does so with everybody's. On a laptop there is no sign-in, and whoever comes is an owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import LimitExceeded, NotAllowed
from core.records import Job
from core.validation import in_words
from core.words import plural

UNVERIFIED = "sub:"
"""Before the id of a person whose e-mail address the provider does not vouch for."""
ANYBODY = "anybody"
"""Id of all who use a shared dashboard without sign-in: what has no owner at all is not theirs."""


class Role(StrEnum):
    """What a person may do; each includes the ones before."""

    VIEWER = "viewer"
    RUNNER = "runner"
    OWNER = "owner"


class Action(StrEnum):
    """What changes something, in the words that follow "may not"."""

    WORK = "set an engine to work"
    """Look for devices, prepare data, check a layout, take a step apart, make, export or judge a model."""
    START = "start runs"
    IMPORT = "import trainings"
    STOP = "stop runs"
    PAUSE = "pause runs"
    RESUME = "resume runs"
    EXTEND = "extend runs"
    RENAME = "rename runs"
    TAG = "tag runs"
    DELETE = "delete runs"


@dataclass(frozen=True)
class Person:
    """Somebody who uses the pages.

    Attributes:
        id: Their e-mail address in lower case where the provider has verified it, else `UNVERIFIED` and the
            provider's own id. `ANYBODY` where nobody signs in; empty for the owner of a laptop.
        role: What they may do.
    """

    id: str
    role: Role

    @property
    def has_signed_in(self) -> bool:
        """True for somebody whom a provider knows."""
        return self.id not in ("", ANYBODY)

    def refusal(self, action: Action, runs: Sequence[Job] = ()) -> NotAllowed | None:
        """Why the person may not do something.

        Args:
            action: What.
            runs: With which runs, where it is done with runs that there are.
        """
        if self.role is Role.OWNER:
            return None
        if self.role is Role.VIEWER:
            return NotAllowed(
                f"Viewers may not {action}.",
                "An owner of this dashboard can make you a runner."
                if self.has_signed_in
                else "The note at the top of the page says how this can be changed.",
            )
        other = next((run for run in runs if run.owner != self.id), None)
        if other is None:
            return None
        if other.owner not in ("", ANYBODY):
            whose = f"belongs to {other.owner}"
        elif self.has_signed_in:
            whose = "was not started by anybody who signed in"
        else:
            whose = "was started on the command line, or before this dashboard was shared"
        return NotAllowed(
            f"Run {other.id} {whose}: runners may not {action} but their own.",
            "Ask an owner of this dashboard.",
        )


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Frozen):
    """What a hosted dashboard allows, to owners too. The command line knows no limits."""

    epochs: int = Field(default=50, ge=1, le=10_000)
    """Of a run."""
    parameters: int = Field(default=10_000_000, ge=1, le=10_000_000_000)
    """Of a model."""
    minutes: float = Field(default=30, gt=0, le=1_000_000)
    """That a run trains, whatever it was paused in between; other work takes no longer either."""
    runs: int = Field(default=3, ge=1, le=10_000)
    """Of one person that are queued or going on, and as many other jobs."""

    def check_epochs(self, epochs: int) -> None:
        """Refuses a run that is too long.

        Raises:
            LimitExceeded: It is.
        """
        if epochs > self.epochs:
            raise LimitExceeded(
                f"{epochs:,} epochs are more than the {self.epochs:,} that this server allows.",
                f"Choose at most {self.epochs:,}.",
                "training.epochs",
            )

    def check_parameters(self, parameters: int) -> None:
        """Refuses a model that is too large.

        Raises:
            LimitExceeded: It is.
        """
        if parameters > self.parameters:
            raise LimitExceeded(
                f"The model has {parameters:,} parameters; this server allows {self.parameters:,}.",
                "Choose a smaller embedding, fewer filters or shorter sequences.",
                "model.filters",
            )

    def check_queue(self, unfinished: int, new: int, what: str, who: str = "You have") -> None:
        """Refuses more of a person's jobs than may wait and go on at a time.

        Args:
            unfinished: What the person has queued or going on.
            new: What shall be added.
            what: ``run`` or ``other job``.
            who: Has them, with the verb, where it is not the person that asks.

        Raises:
            LimitExceeded: They are too many.
        """
        if unfinished + new > self.runs:
            raise LimitExceeded(
                f"{who} {plural(unfinished, what)} queued or going on, and {new:,} more"
                f" {'is' if new == 1 else 'are'} wanted; this server allows {self.runs:,} at a time.",
                "Wait until one has ended, or stop one.",
            )

    def check_time(self, run: Job) -> None:
        """Refuses to go on with a run whose time is used up.

        Raises:
            LimitExceeded: It is.
        """
        trained_min = (run.duration_s or 0) / 60
        if trained_min >= self.minutes:
            raise LimitExceeded(
                f"Run {run.id} has trained for {trained_min:,.0f} min; this server allows"
                f" {self.minutes:,g} min.",
                "Its checkpoints and history are kept. Start another run with fewer epochs.",
            )


class Roles(_Frozen):
    """Who has which role: e-mail addresses, ``*@school.edu``, or ``*`` for everybody who can sign in."""

    owner: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()
    viewer: tuple[str, ...] = ("*",)

    def of(self, person_id: str) -> Role | None:
        """The highest role that names this person; None where none does."""
        for role, names in ((Role.OWNER, self.owner), (Role.RUNNER, self.runner), (Role.VIEWER, self.viewer)):
            if any(_is_named(person_id, name) for name in names):
                return role
        return None


def _is_named(person_id: str, name: str) -> bool:
    # Case matters in a provider's ids (OpenID Connect Core 1.0, section 2), and does not in addresses.
    if not name.startswith(UNVERIFIED):
        name = name.casefold()
    if name.startswith("*@"):
        # An id that the provider lets people choose may end like an address.
        return person_id.endswith(name[1:]) and not person_id.startswith(UNVERIFIED)
    return name in ("*", person_id)


class AccessSettings(_Frozen):
    """The section ``[mirrorboard]`` of Streamlit's secrets file."""

    hosted: bool = False
    """Limits hold, and details of errors stay in the log. Implied by sign-in and by a public address."""
    role_without_sign_in: Literal["viewer", "runner", "owner"] | None = None
    """Of everybody, where no sign-in is set up; None: owner on a laptop, viewer on a hosted dashboard."""
    roles: Roles = Roles()
    limits: Limits = Limits()


def parse_access(values: Mapping[str, Any]) -> AccessSettings:
    """Builds the settings from plain values.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    try:
        return AccessSettings.model_validate(values)
    except ValidationError as error:
        raise in_words(error.errors()[0], AccessSettings) from None


def person_id(claims: Mapping[str, Any]) -> str:
    """Who somebody is whom an OpenID Connect provider has let sign in.

    Args:
        claims: Of the identity token. An address counts only where ``email_verified`` is true: some providers
            let people enter any.
    """
    email, subject = claims.get("email"), claims.get("sub")
    if isinstance(email, str) and email and claims.get("email_verified") in (True, "true"):
        return email.casefold()
    return f"{UNVERIFIED}{subject}"
