"""All studies by name. `coterie reproduce`, its help and the checks of the documentation derive from this table."""

from __future__ import annotations

from difflib import get_close_matches

from coterie._src.studies import arena, beyond, claims, figure1, rotated_mnist, slopes
from coterie._src.studies.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        figure1.STUDY,
        slopes.STUDY,
        claims.STUDY,
        beyond.STUDY,
        rotated_mnist.STUDY,
        arena.STUDY,
    )
}


def study(name: str) -> Study:
    """The study of this name; ValueError with a suggestion where there is none."""
    if name in STUDIES:
        return STUDIES[name]
    near = get_close_matches(name, STUDIES, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(STUDIES)}"
    raise ValueError(f"reproduce: no study is called {name}; {hint}")
