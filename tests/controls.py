"""What each control of the pages is for: which action it takes, or why everybody may use it."""

from __future__ import annotations

import re

from core.access import Action

ACTIONS = {
    "lesson": Action.START,
    "start": Action.START,
    "start_study": Action.START,
    "import_files": Action.IMPORT,
    "import_now": Action.IMPORT,
    "retry_reuters": Action.WORK,
    "inspect": Action.WORK,
    "check": Action.WORK,
    "describe_again": Action.WORK,
    "take_step": Action.WORK,
    r"evaluate_again_\w+": Action.WORK,
    "classify": Action.WORK,
    r"(typed|words_of)_\w+_again": Action.WORK,
    r"export_(keras|savedmodel)_(best|last)": Action.WORK,
    "export_tensorboard_last": Action.WORK,
    "pause": Action.PAUSE,
    "stop": Action.STOP,
    "stop_study": Action.STOP,
    "resume": Action.RESUME,
    "resume_elsewhere": Action.RESUME,
    "extend": Action.EXTEND,
    "extend_epochs": Action.EXTEND,
    "extend_now": Action.EXTEND,
    "rename": Action.RENAME,
    r"name_\w+": Action.RENAME,
    "save_name": Action.RENAME,
    "tags": Action.TAG,
    r"tags_\w+": Action.TAG,
    "save_tags": Action.TAG,
    "delete": Action.DELETE,
    "delete_for_good": Action.DELETE,
}
"""By patterns of keys: what changes something or sets the server to work."""
ON_RUNS = {Action.PAUSE, Action.STOP, Action.RESUME, Action.EXTEND, Action.RENAME, Action.TAG, Action.DELETE}
"""Actions for which it matters whose the run is."""
_SETTING = "a setting in the address of one's own browser; nothing is done with it before a control above"
_VIEW = "what one's own browser shows of what is there"
_READ = "a file of what the pages show anyway, written without an engine"
FREE = {
    r"(layout|data|model|training|execution|scaling|step)\.[\w.]+": _SETTING,
    r"strategy_\w+": _SETTING,
    r"fix_[\w-]+": _SETTING,
    r"import_(name|classes)": "goes with Import, in one form",
    "newswire": "goes with Classify, in one form",
    "script": "is looked through, and never run or kept",
    r"(runs|compare|matrix|cell|stop)\.[\w.]+": _VIEW,
    r"(chooser|compare_chooser|study_chooser|code_of|which|axis|accuracy|stops|log_classes)": _VIEW,
    r"(example|example_split|play_step|open|compare_study)": _VIEW,
    r"(recent|watch|cell_page)_\w+": _VIEW,
    r"runs_table_-?\d+": _VIEW,
    r"\w+_chart": _VIEW,
    "(address_(page|run|step)|pulse_timer|(downloads|exports|study_files|code)_news)": _VIEW,
    r"words_\d+": "shows what somebody has asked about a newswire; it asks only for those who may",
    r"export_(csv|json|parquet|py|ipynb)": _READ,
    r"export(_(runs|epochs)_(CSV|Parquet))?": _READ,
    "save_study": _READ,
}
"""By patterns of keys: what everybody may use, and why."""
OUTSIDE = {"sign_out", "sign_in_.*", "open_again"}
"""Patterns of keys where there is no role or no store yet."""


def action(key: str) -> Action | None:
    """What a control does; None where everybody may use it.

    Raises:
        AssertionError: Nobody has decided that.
    """
    found = {
        *(what for pattern, what in ACTIONS.items() if re.fullmatch(pattern, key)),
        *(None for pattern in FREE if re.fullmatch(pattern, key)),
    }
    assert len(found) == 1, (
        f"Who may use the control {key!r}? Add it to ACTIONS or FREE in tests/controls.py."
    )
    return found.pop()
