"""What people see of sign-in and roles: the way in, who they are, and why they may only look."""

from __future__ import annotations

import streamlit as st

from core.access import Person, Role, person_id
from core.dashboard import access


def ask_to_sign_in() -> None:
    """The whole page for somebody who has not signed in, or whom no role names."""
    if st.user.get("is_logged_in"):
        st.title("No access", anchor=False)
        st.markdown("You have signed in, but you are not on this dashboard's lists. Its owners know you by:")
        st.code(person_id(st.user.to_dict()), language=None, wrap_lines=True)
        st.button("Sign out", key="sign_out", icon=":material/logout:", on_click=st.logout)
        return
    st.title("Sign in to Mirrorboard", anchor=False)
    st.markdown("Runs, curves and devices are shown to those who have signed in.")
    with st.container(horizontal=True):
        for name in access.providers():
            st.button(
                "Sign in" if name == "default" else f"Sign in with {name.capitalize()}",
                key=f"sign_in_{name}",
                type="primary",
                icon=":material/login:",
                on_click=st.login,
                args=(None if name == "default" else name,),
            )


def banner(person: Person) -> None:
    """Says why nobody may change anything, and how that is changed, where there is no sign-in."""
    if person.has_signed_in or person.role is not Role.VIEWER:
        return
    where = "can be reached from other machines" if access.is_public() else "is set up for several people"
    st.info(
        f"**Read-only.** This dashboard {where} and has no sign-in, so nobody may change anything. To change"
        " that, set up sign-in or, where all who reach it may do everything, start it with"
        " `MIRRORBOARD_ROLE=owner`; SECURITY.md has both.",
        icon=":material/visibility:",
    )


def who(person: Person) -> None:
    """Who has signed in, at the foot of the sidebar."""
    if not person.has_signed_in:
        return
    st.divider()
    st.caption(f":material/account_circle: Signed in as {person.role}")
    st.text(person.id)
    st.button("Sign out", key="sign_out", icon=":material/logout:", type="tertiary", on_click=st.logout)
