"""All studies by name. `coterie reproduce`, its help and the checks of the documentation derive from this table."""

from __future__ import annotations

from coterie._src.registry import Registry
from coterie._src.studies import arena, beyond, claims, figure1, rotated_mnist, slopes, tables
from coterie._src.studies.study import Study

STUDIES: Registry[Study] = Registry(
    "study",
    [figure1.STUDY, slopes.STUDY, claims.STUDY, beyond.STUDY, rotated_mnist.STUDY, tables.STUDY, arena.STUDY],
)


def study(name: str) -> Study:
    """The study of this name; a ValueError with a suggestion where there is none."""
    try:
        return STUDIES[name]
    except ValueError as error:
        raise ValueError(f"reproduce: {error}") from None
