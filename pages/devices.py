"""Step 1: what this machine has, and which of it a run trains on."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.access import Action
from core.config import LOCAL_TPU, DeviceLayout
from core.dashboard import draft, drawings, forms, units
from core.dashboard.access import why_not
from core.dashboard.frame import page
from core.dashboard.job_status import rerun_when_done
from core.dashboard.log import explained
from core.dashboard.messages import boundary, plain, problem
from core.dashboard.server import latest_answer, machine, missing_device
from core.errors import ConfigError
from core.records import Job, Kind, LogLine
from core.store import Store
from core.take_home import layout_code

_TIERS = {
    # Strategy: name, lines of code that it adds, when it pays.
    "single": (
        "Single device",
        "0–4 lines",
        "For visible devices, memory growth and memory limits. Pays for small models such as this one.",
    ),
    "mirrored": (
        "MirroredStrategy",
        "2 lines",
        "One replica on each device, in sync. Pays on several GPUs when a step outlasts the all-reduce.",
    ),
    "tpu": (
        "TPUStrategy",
        "6 lines",
        "Find the TPU, connect, initialise, then as above. Pays for large batches of fixed shape.",
    ),
}
_OPS = {"matmul": "Matrix product", "embedding": "Embedding", "convolution": "Convolution"}
_REDUCTIONS = {
    "auto": "Automatic",
    "hierarchical_copy": "Hierarchical copy",
    "reduction_to_one_device": "Reduction to one device",
    "nccl": "NCCL",
}


def _machine(store: Store, found: Job | None) -> list[dict[str, Any]]:
    """What there is. Returns the physical devices."""
    st.subheader("This machine", anchor=False)
    if found is None or not found.status.is_final:
        st.info("TensorFlow is looking for devices. This takes a few seconds.", icon=":material/search:")
        return []
    if found.result is None:
        error = found.error or {}
        problem(error.get("message", "The devices could not be listed."), error.get("hint", ""))
        _look_again(store)
        return []
    result = found.result
    rows = [
        {
            "Device": f"{device['type']}:{device['index']}",
            "Name": plain(device["name"]),
            "Memory": units.memory(device["memory_bytes"]),
            "Compute capability": device["compute_capability"] or "–",
        }
        for device in result["devices"]
    ]
    st.table(rows, hide_index=True)
    if result["gpu_reason"]:
        st.info(plain(result["gpu_reason"]), icon=":material/info:")
    st.caption(
        f"{plain(result['platform'])}, {units.plural(result['cpus'], 'processor')},"
        f" TensorFlow {result['tensorflow']}, Keras {result['keras']}, Python {result['python']}"
    )
    _look_again(store)
    devices: list[dict[str, Any]] = result["devices"]
    return devices


def _look_again(store: Store) -> None:
    reason = why_not(Action.WORK)
    if st.button(
        "Look again",
        key="inspect",
        icon=":material/refresh:",
        type="tertiary",
        disabled=reason is not None,
        help=reason,
    ):
        with boundary():
            store.submit(Kind.INSPECT, {})
            st.rerun()


def _tiers(found: Job | None, error: ConfigError | None) -> None:
    """The three ways to train, each with what it costs; one without a device is greyed with the reason."""
    no_tpu = ((found and found.result) or {}).get("tpu_reason", "")
    for strategy, (name, lines, pays) in _TIERS.items():
        with st.container(border=True, gap="small"):
            chosen = draft.value("layout.strategy") == strategy
            unusable = strategy == "tpu" and bool(no_tpu) and draft.value("layout.tpu") == LOCAL_TPU
            with st.container(
                horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"
            ):
                st.markdown(f"**{name}** :gray-badge[adds {lines}]", width="content")
                st.button(
                    "Chosen" if chosen else f"Choose {strategy.replace('tpu', 'TPU')}",
                    key=f"strategy_{strategy}",
                    icon=":material/check:" if chosen else None,
                    disabled=chosen or unusable,
                    on_click=_choose,
                    args=(strategy,),
                )
            st.caption(pays)
            if strategy == "tpu":
                if unusable and not chosen:
                    st.caption(
                        f":material/block: {plain(str(no_tpu))} One elsewhere can be used by its address."
                    )
                forms.text(
                    "layout.tpu",
                    "Name or address of the TPU",
                    error,
                    help='"local" on a TPU VM; else grpc://HOST:8470, or its name on Google Cloud.',
                )
    draft.problem_at(error, "layout.strategy")


def _choose(strategy: str) -> None:
    st.session_state["layout.strategy"] = strategy


def _indices(devices: list[dict[str, Any]]) -> range:
    """What can be chosen among the physical devices of the kind; the first even where there is none."""
    return range(max(1, sum(device["type"] == draft.value("layout.device_type") for device in devices)))


def _form(devices: list[dict[str, Any]], error: ConfigError | None) -> None:
    forms.choice("layout.device_type", "Physical devices", {"CPU": "CPU", "GPU": "GPU"}, error)
    kind = draft.value("layout.device_type")
    forms.several(
        "layout.visible_devices", "Visible to the run", _indices(devices), lambda i: f"{kind}:{i}", error
    )
    forms.slider(
        "layout.logical_devices",
        "Logical devices per physical device",
        error,
        help="TensorFlow can split one physical device into several logical ones, to try a layout without the"
        " hardware.",
    )
    if kind == "GPU":
        growth = draft.value("layout.memory_growth")
        forms.number(
            "layout.memory_limit_mb",
            "Memory limit of each logical GPU (MiB)",
            error,
            step=256,
            empty="No limit",
            help="What TensorFlow's allocator may take; the process itself needs some hundred MiB more.",
        )
        forms.switch(
            "layout.memory_growth",
            "Memory growth",
            error,
            help="Take memory when it is needed instead of all at the start.",
        )
        st.caption(
            "Memory growth holds for all visible GPUs alike, and excludes memory limits and splitting."
            + (" It is on: keep one logical device and no limit." if growth else "")
        )
    else:
        st.caption("Memory limits and memory growth exist for GPUs only.")
    if draft.value("layout.strategy") == "mirrored":
        st.selectbox(
            "Cross-device ops",
            list(_REDUCTIONS),
            format_func=_REDUCTIONS.__getitem__,
            key="layout.cross_device_ops",
            persist_state="session",
            help="How the replicas' gradients are brought together after every step. NCCL works between GPUs"
            " only.",
        )
        draft.problem_at(error, "layout.cross_device_ops")


def _in_words(layout: DeviceLayout) -> str:
    if layout.strategy == "tpu":
        return f"The TPU at {layout.tpu}, one replica on each of its cores"
    kind = layout.device_type
    physical = units.plural(len(layout.visible_devices), f"physical {kind}")
    logical = units.plural(layout.available, f"logical {kind}")
    return f"{physical}, {logical}, {units.plural(layout.replicas, 'replica')} in sync"


def _result(job: Job, layout: DeviceLayout) -> None:
    if not job.status.is_final:
        st.info("A fresh engine process is trying this layout.", icon=":material/hourglass_top:")
        return
    if job.result is None:
        error = job.error or {}
        problem(error.get("message", "The check did not finish."), error.get("hint", ""))
        return
    result = job.result
    actual = result["actual"]
    if result["matches"]:
        st.success(f"It works: {plain(_in_words(layout))}.", icon=":material/check_circle:")
    else:
        problem("TensorFlow made something else of this layout.", "Compare the two columns below.")
    kind = "TPU" if layout.strategy == "tpu" else layout.device_type
    st.table(
        [
            {
                "": name,
                "Requested": f"{result['requested'][key]:,}",
                "Actual": f"{len(actual[key]) if isinstance(actual[key], list) else actual[key]:,}",
            }
            for name, key in (
                (f"Physical {kind}s", "physical"),
                (f"Logical {kind}s", "logical"),
                ("Replicas in sync", "replicas"),
            )
        ],
        hide_index=True,
    )
    _self_test(result.get("self_test", []))
    if result["log"]:
        st.caption("What TensorFlow said")
        checked_at = job.finished_at or job.created_at
        explained(LogLine(checked_at, "info", "tensorflow", line) for line in result["log"])


def _self_test(tries: list[dict[str, Any]]) -> None:
    """What each logical device makes of the model's operations."""
    if not tries:
        return
    st.caption("Each operation ran forward and backward on each logical device.")
    rows: dict[str, dict[str, str]] = {}
    for tried in tries:
        row = rows.setdefault(tried["device"], {"Device": tried["device"]})
        row[_OPS[tried["op"]]] = f"passed, {tried['ms']:.1f} ms" if tried["ok"] else "failed"
    st.table(list(rows.values()), hide_index=True)
    for tried in tries:
        if not tried["ok"]:
            problem(
                f"{tried['device']} failed at the {_OPS[tried['op']].lower()}. {tried['error']}",
                "Leave this device out, or look at its driver.",
            )


def _check(store: Store, layout: DeviceLayout, *, possible: bool) -> None:
    config = layout.model_dump(mode="json")
    job = latest_answer(store, Kind.CHECK, config)
    running = job is not None and not job.status.is_final
    reason = why_not(Action.WORK)
    if st.button(
        "Check this layout",
        key="check",
        type="primary",
        icon=":material/fact_check:",
        disabled=running or not possible or reason is not None,
        help=reason
        or "Runs the lines above in a fresh engine process and shows what TensorFlow makes of them.",
    ):
        job = store.job(store.submit(Kind.CHECK, config))
    if job is not None:
        _result(job, layout)
        rerun_when_done(store, job)


with page(
    "Devices",
    "Choose what a run trains on. TensorFlow fixes its devices once per process, so every run gets a process"
    " of its own.",
) as store:
    found = machine(store)
    devices = _machine(store, found)
    for job in store.jobs(kinds=[Kind.INSPECT], limit=1):
        rerun_when_done(store, job)
    if devices:
        forms.keep("layout.visible_devices", _indices(devices))
    error: ConfigError | None = None
    layout = None
    try:
        layout = draft.layout()
        error = missing_device(found, layout)
    except ConfigError as refused:
        error = refused
    left, right = st.columns([5, 6], gap="large")
    with left:
        st.subheader("Layout", anchor=False)
        _tiers(found, error)
        if draft.value("layout.strategy") != "tpu":
            _form(devices, error)
    with right:
        st.subheader("What it amounts to", anchor=False)
        if layout is None:
            st.info("Correct the marked setting to see the layout.", icon=":material/edit:")
        else:
            st.markdown(f"**{plain(_in_words(layout))}**")
            if layout.strategy != "tpu":
                names = {
                    device["index"]: device["name"]
                    for device in devices
                    if device["type"] == layout.device_type
                }
                drawings.draw(
                    drawings.layout(layout, [names.get(i, "") for i in layout.visible_devices]),
                    key="layout_drawing",
                )
            st.code(layout_code(layout), language="python")
            with boundary():
                _check(store, layout, possible=error is None)
