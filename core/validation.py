"""What pydantic refuses, said in words for people: the setting's name, the value, and what would do."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from core.errors import ConfigError
from core.words import plural, shown

_CALLED = {
    "layout.memory_limit_mb": "Memory limit (MiB)",
    "layout.tpu": "TPU",
    "data.max_len": "Sequence length",
    "training.batch_size": "Global batch size",
    "training.patience": "Patience (epochs)",
    "model.from_logits": "from_logits",
}
"""Settings that are called otherwise than their fields."""

_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "model": "a group of settings",
}
"""What pydantic 2's error types ask for, by their first word."""


def in_words(error: ErrorDetails, root: type[BaseModel]) -> ConfigError:
    """An error of pydantic's as one for people.

    Args:
        error: As `pydantic.ValidationError.errors` gives it.
        root: The model that was validated: settings in sections.
    """
    section, setting, *place = (*map(str, error["loc"]), "", "")[: max(len(error["loc"]), 2)]
    field = ".".join(filter(None, (section, setting, *place)))
    if error["type"] == "extra_forbidden":
        return _unknown(root, section, setting)
    name = _CALLED.get(f"{section}.{setting}") or (setting or section or "the configuration").replace(
        "_", " "
    )
    if place:
        name = f"value {int(place[0]) + 1} of {name}"
    name = name if name in _CALLED.values() else name[:1].upper() + name[1:]
    given, limits = shown(error["input"]), error.get("ctx", {})
    hint = "Correct this setting; the others were left as they are."
    match error["type"]:
        case "greater_than_equal" | "less_than_equal" | "greater_than":
            limit = next(iter(limits.values()))
            how = {"g": "at least", "l": "at most"}[error["type"][0]]
            how = "above" if error["type"] == "greater_than" else how
            message = f"{name} must be {how} {shown(limit)}, not {given}."
            hint = _range(_fields(root, section)[setting])
        case "literal_error":
            options = limits["expected"].replace("'", "").replace(" or ", ", ")
            message, hint = f"{name} must be one of {options}, not {given}.", "Choose one of them."
        case "string_too_long" | "too_long":
            unit = "character" if error["type"] == "string_too_long" else "value"
            most, length = limits["max_length"], len(cast("Any", error["input"]))
            message = f"{name} must have at most {plural(most, unit)}, not {length:,}."
        case "invalid_key":
            message = f"The name of a setting must be text, not {given}."
        case "missing":
            message = f"{name} is missing."
        case kind:
            message = f"{name} must be {_WANTED[kind.partition('_')[0]]}, not {given}."
    return ConfigError(message, hint, field)


def _unknown(root: type[BaseModel], section: str, setting: str) -> ConfigError:
    """Names what there is instead of a setting or a section that there is not."""
    known = list(_fields(root, section) if setting else root.model_fields)
    name = setting or section
    near = get_close_matches(name, known, n=1)
    return ConfigError(
        f"There is no setting {shown(name)}{f' in {section}' if setting else ''}.",
        f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}.",
        f"{section}.{name}" if setting else name,
    )


def _fields(root: type[BaseModel], section: str) -> dict[str, FieldInfo]:
    return cast("type[BaseModel]", root.model_fields[section].annotation).model_fields


def _range(field: FieldInfo) -> str:
    """From where to where a setting goes."""
    limits = {
        limit: shown(getattr(rule, limit))
        for rule in field.metadata
        for limit in ("ge", "gt", "le")
        if hasattr(rule, limit)
    }
    low = f"from {limits['ge']}" if "ge" in limits else f"above {limits['gt']} and up"
    return f"Choose a value {low} to {limits['le']}."
