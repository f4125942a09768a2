"""Estimators for scikit-learn (`coterie[sklearn]`) on top of `ct.fit`; public as `coterie.sklearn`."""

from coterie._src.estimators.classifier import ClusteredClassifier
from coterie._src.estimators.regressor import ClusteredRegressor

__all__ = ["ClusteredClassifier", "ClusteredRegressor"]
