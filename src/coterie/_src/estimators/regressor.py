"""Linear regression by clusters of sites."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import column_or_1d, validate_data

from coterie._src.arrays import Floats
from coterie._src.estimators.base import ClusteredModel


class ClusteredRegressor(RegressorMixin, ClusteredModel):  # type: ignore[misc]
    """Linear regression with one model per cluster of sites, and one per site, although some sites are Byzantine.

    Rows come from sites, which `groups` names. Unknown to everyone the sites fall into clusters, each with a linear
    model of its own, and a fraction of them may hold anything. `fit` finds clusters and models by `coterie.fit`.

    Parameters
    ----------
    n_clusters : int or "auto", default 2
        The number of clusters, at most that of the sites; "auto" finds it.
    max_byzantine : float or "auto", default 0.05
        Bound on the fraction of Byzantine sites; below the share of the smallest cluster. "auto" estimates one.
    method : str, default "coterie"
        The name of a method (`coterie.registered("methods")` lists them).
    personalise : "shrink" or "none", default "shrink"
        "shrink": a site is predicted by a model of its own, shrunk towards that of its cluster by as much as its own
        samples ask for; "none": by that of its cluster.
    unknown : "raise" or "global", default "raise"
        What predicts a row whose site was not in the fit. "raise": nothing, it is an error: the clusters have different
        models, their mean may be right for no site, and a misspelt name would go unnoticed. "global": the mean of the
        clusters' predictions, weighted by their shares of the sites, which is what is expected of a site drawn at
        random. Clusters with no more sites than may be Byzantine do not count in it.
    fit_intercept : bool, default True
        Whether the models have an intercept.
    max_rounds : int, default 300
        The largest number of rounds; "coterie" needs a few.
    options : dict, optional
        Every other option of the method, by its name in the table `[algorithm]` of `coterie config`, such as `init`.
    random_state : int, RandomState or None, default None
        Everything random follows from it.

    Attributes
    ----------
    sites_ : ndarray of shape (n_sites,)
        The names of the sites, in their order.
    labels_ : ndarray of shape (n_sites,)
        The cluster of every site.
    n_clusters_ : int
        The number of clusters.
    coef_ : ndarray of shape (n_clusters, n_features)
        The coefficients of the cluster models.
    intercept_ : ndarray of shape (n_clusters,)
        Their intercepts.
    site_coef_ : ndarray of shape (n_sites, n_features)
        The coefficients of the model that predicts each site.
    site_intercept_ : ndarray of shape (n_sites,)
        Their intercepts.
    cluster_weights_ : ndarray of shape (n_clusters,)
        The weights of the clusters in a "global" prediction.
    suspicion_ : frame
        The sites that stand out most first, with the columns `site`, `cluster`, `score` and `reasons`: a frame of
        pandas, without it one of Polars, and without both a dictionary of arrays. score: −log₁₀ of the probability
        that a member of the cluster has such a loss or a larger one. reasons: in words; "" for a site that does not
        stand out. At most about one in a hundred honest sites has a reason.
    diagnostics_ : coterie.Diagnostics or None
        Whether the clusters are apart, which sites could belong to another one, and so on.
    n_iter_ : int
        The number of rounds.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X was a frame.

    Examples
    --------
    >>> import numpy as np
    >>> from coterie.sklearn import ClusteredRegressor
    >>> rng = np.random.default_rng(0)
    >>> site = np.repeat(["bern", "oslo", "rome", "wien"], 30)
    >>> X = rng.standard_normal((120, 3))
    >>> y = np.where((site == "oslo") | (site == "wien"), 1, -1) * X.sum(axis=1)
    >>> model = ClusteredRegressor(n_clusters=2, max_byzantine=0, random_state=0).fit(X, y, groups=site)
    >>> bool(model.labels_[1] == model.labels_[3] != model.labels_[0] == model.labels_[2])
    True
    >>> model.predict([[1.0, 1.0, 1.0]], groups=["oslo"]).round(6).tolist()
    [3.0]
    """

    @property
    def _task_name(self) -> str:
        return "linear"

    def fit(self, X: Any, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Find the clusters of the sites, and a model for each cluster and each site.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
            The features.
        y : array-like of shape (n_samples,)
            The targets.
        groups : array-like of shape (n_samples,), optional
            The site of every row, strings or numbers; without them all rows are one site's.

        Returns
        -------
        ClusteredRegressor
            Itself.
        """
        features, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        return self._fit(features, targets.astype(np.float64), groups)

    def predict(self, X: Any, groups: ArrayLike | None = None, *, cluster: int | None = None) -> Floats:
        """The targets that the models of the sites predict.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
            The features.
        groups : array-like of shape (n_samples,), optional
            The site of every row; not needed if the fit had one site.
        cluster : int, optional
            A cluster, in the place of the sites: its model predicts all rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            The predicted targets.
        """
        return self._predicted(X, groups, cluster)[:, 0]

    def score(
        self, X: Any, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """The coefficient of determination R² of the predictions, over all rows together.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
            The features.
        y : array-like of shape (n_samples,)
            The targets.
        groups : array-like of shape (n_samples,), optional
            The site of every row, as for `predict`.
        sample_weight : array-like of shape (n_samples,), optional
            The weights of the rows.

        Returns
        -------
        float
            R².
        """
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _expected(self, features: Floats, coefficients: Floats, intercepts: Floats, number: int) -> Floats:
        found: Floats = (features @ coefficients[number] + intercepts[number])[:, None]
        return found

    def _shaped(self, values: Floats) -> Floats:
        return values[:, 0]

    def _targets(self, y: Any) -> Floats:
        targets: Floats = column_or_1d(y, dtype=np.float64)
        if not np.isfinite(targets).all():
            raise ValueError("y holds a value that is not a finite number")
        return targets
