"""Who is at the page, and what they may do: Streamlit's sign-in, the settings, the address listened on."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import streamlit as st

from core.access import ANYBODY, AccessSettings, Action, Limits, Person, Role, parse_access, person_id
from core.config import RunConfig
from core.dashboard.markdown import plain
from core.errors import ConfigError, LimitExceeded
from core.gate import Gate, over
from core.records import Job
from core.store import Store, default_home


def _secrets() -> dict[str, Any]:
    """Streamlit's secrets file; empty where there is none.

    Raises:
        ConfigError: There is one that cannot be read. Without it everybody might be let in.
    """
    if st.secrets.load_if_toml_exists():
        return st.secrets.to_dict()
    there = [file for file in st.get_option("secrets.files") if Path(file).exists()]
    if there:
        raise ConfigError(
            "The secrets file with the settings for sign-in and roles cannot be read.",
            "The dashboard's log has the line at fault. Correct it and start the dashboard again.",
        )
    return {}


def settings() -> AccessSettings:
    """The section ``[mirrorboard]`` of the secrets file, overruled by the environment.

    Raises:
        ConfigError: A setting is unknown or cannot be.
    """
    section = _secrets().get("mirrorboard", {})
    if not isinstance(section, dict):
        raise ConfigError("mirrorboard in the secrets file must be a section.", "Write [mirrorboard].")
    section = dict(section)
    if "MIRRORBOARD_HOSTED" in os.environ:
        section["hosted"] = os.environ["MIRRORBOARD_HOSTED"] not in ("", "0")
    if os.environ.get("MIRRORBOARD_ROLE"):
        section["role_without_sign_in"] = os.environ["MIRRORBOARD_ROLE"]
    return parse_access(section)


def providers() -> list[str]:
    """Names of the identity providers by which people can sign in; empty where none is set up."""
    auth = _secrets().get("auth", {})
    named = [name for name, value in auth.items() if isinstance(value, dict) and "client_id" in value]
    return (["default"] if "client_id" in auth else []) + named


def is_public() -> bool:
    """True when other machines can reach the port: it listens on more than this machine's own address."""
    address = st.get_option("server.address")
    if not address:
        return True
    if address == "localhost" or address.startswith("unix:"):
        return False
    try:
        return not ip_address(address).is_loopback
    except ValueError:
        return True


def is_hosted() -> bool:
    """True when limits hold and details of errors stay in the log."""
    try:
        return settings().hosted or bool(_secrets().get("auth")) or is_public()
    except ConfigError:
        return True  # nobody knows, and the page is about to say so


def limits() -> Limits | None:
    """What a run may be; None where it may be anything."""
    return settings().limits if is_hosted() else None


def over_limits(config: RunConfig, *, trains: bool = True, run: Job | None = None) -> LimitExceeded | None:
    """What of a run is more than this dashboard allows, if anything; arguments as for `core.gate.over`."""
    allowed = limits()
    return None if allowed is None else over(allowed, config, trains=trains, run=run)


def person() -> Person | None:
    """Who is at the page; None for somebody who has to sign in first, or whom no role names."""
    asked = settings()
    if not _secrets().get("auth"):
        usual = Role.VIEWER if is_hosted() else Role.OWNER
        everybodys = Role(asked.role_without_sign_in or usual)
        on_laptop = everybodys is Role.OWNER and not is_hosted()
        return Person("" if on_laptop else ANYBODY, everybodys)
    if not st.user.get("is_logged_in"):
        return None
    found = person_id(st.user.to_dict())
    role = asked.roles.of(found)
    return None if role is None else Person(found, role)


def gate(store: Store, someone: Person) -> Gate:
    """The store as a person may use it."""
    return Gate(store, someone, limits())


def why_not(action: Action, *runs: Job) -> str | None:
    """Why whoever is at the page may not do something, for the tooltip of a control that is turned off."""
    someone = person()
    refusal = None if someone is None else someone.refusal(action, runs)
    return None if refusal is None else plain(str(refusal))


def harden() -> None:
    """Holds a hosted dashboard to what it promises, whatever the configuration file says.

    Raises:
        ConfigError: A protection of Streamlit's is turned off.
    """
    if not is_hosted():
        return
    # Uncaught errors then say nothing of themselves on the page (Streamlit 1.67).
    st.set_option("client.showErrorDetails", "none")
    for option in ("server.enableXsrfProtection", "server.enableCORS"):
        if not st.get_option(option):
            raise ConfigError(
                f"{option} is turned off, which a hosted dashboard cannot do without.",
                "Remove the option and start the dashboard again.",
            )


def without_folders(text: str) -> str:
    """A text for people who are not to know where the store lies on the server."""
    return text.replace(str(default_home().expanduser().absolute()), "the store") if is_hosted() else text
