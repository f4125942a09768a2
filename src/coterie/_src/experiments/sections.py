"""What all tables of a configuration have in common."""

from __future__ import annotations

import warnings
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """One table of the configuration file: frozen, validated, every key explained."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _old_names(cls, raw: Any) -> Any:
        """Accept keys by the names that they had before, for one version."""
        if not isinstance(raw, dict):
            return raw
        renamed = dict(raw)
        for name, field in cls.model_fields.items():
            extra = field.json_schema_extra
            old = extra.get("old_name") if isinstance(extra, dict) else None
            if isinstance(old, str) and old in renamed:
                warnings.warn(f"{old} is now called {name}; the old name goes in 0.2", DeprecationWarning, stacklevel=2)
                renamed.setdefault(name, renamed.pop(old))
        return renamed
