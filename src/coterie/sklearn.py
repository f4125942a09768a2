"""Estimators for scikit-learn, which `pip install 'coterie[sklearn]'` brings.

`ClusteredRegressor` and `ClusteredClassifier` learn one linear model per cluster of sites, and one per site on top, by
`coterie.fit`; `groups` says which site a row belongs to. `docs/sklearn.md` shows them in pipelines and searches.
"""

from coterie._src.estimators import ClusteredClassifier, ClusteredRegressor

__all__ = ["ClusteredClassifier", "ClusteredRegressor"]
