"""Logistic and softmax regression by clusters of sites."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from coterie._src.arrays import Floats
from coterie._src.estimators.base import ClusteredModel


class ClusteredClassifier(ClassifierMixin, ClusteredModel):  # type: ignore[misc]
    """Classification with one model per cluster of sites, and one per site, although some sites are Byzantine.

    Logistic regression for two classes, softmax regression for more. Rows come from sites, which `groups` names.
    Unknown to everyone the sites fall into clusters, each with a model of its own, and a fraction of them may hold
    anything. `fit` finds clusters and models by `coterie.fit`.

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
        What predicts a row whose site was not in the fit: nothing, or the mean of the clusters' probabilities, weighted
        by their shares of the sites; see `ClusteredRegressor`.
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
    classes_ : ndarray of shape (n_classes,)
        The labels of the classes, in their order.
    sites_ : ndarray of shape (n_sites,)
        The names of the sites, in their order.
    labels_ : ndarray of shape (n_sites,)
        The cluster of every site.
    n_clusters_ : int
        The number of clusters.
    coef_ : ndarray of shape (n_clusters, 1, n_features) or (n_clusters, n_classes, n_features)
        The coefficients of the cluster models, each as those of scikit-learn's `LogisticRegression`: one row for the
        second of two classes, or a row per class.
    intercept_ : ndarray of shape (n_clusters, 1) or (n_clusters, n_classes)
        Their intercepts.
    site_coef_ : ndarray of shape (n_sites, 1, n_features) or (n_sites, n_classes, n_features)
        The coefficients of the model that predicts each site.
    site_intercept_ : ndarray of shape (n_sites, 1) or (n_sites, n_classes)
        Their intercepts.
    cluster_weights_ : ndarray of shape (n_clusters,)
        The weights of the clusters in a "global" prediction.
    suspicion_ : frame
        The sites that stand out most first; see `ClusteredRegressor`.
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
    >>> from coterie.sklearn import ClusteredClassifier
    >>> rng = np.random.default_rng(0)
    >>> site = np.repeat(["bern", "oslo", "rome", "wien"], 50)
    >>> X = rng.standard_normal((200, 2))
    >>> turned = (site == "oslo") | (site == "wien")
    >>> y = np.where((X[:, 0] + 0.3 * X[:, 1] > 0) == turned, "yes", "no")
    >>> model = ClusteredClassifier(n_clusters=2, max_byzantine=0, random_state=0).fit(X, y, groups=site)
    >>> model.predict([[2.0, 0.0], [2.0, 0.0]], groups=["oslo", "rome"]).tolist()
    ['yes', 'no']
    """

    __metadata_request__predict_proba: ClassVar = {"groups": True, "cluster": UNUSED}

    @property
    def _task_name(self) -> str:
        return "softmax" if len(self.classes_) > 2 else "logistic"

    @property
    def _classes(self) -> int:
        return len(self.classes_)

    def fit(self, X: Any, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Find the clusters of the sites, and a model for each cluster and each site.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
            The features.
        y : array-like of shape (n_samples,)
            The classes, by labels of any kind.
        groups : array-like of shape (n_samples,), optional
            The site of every row, strings or numbers; without them all rows are one site's.

        Returns
        -------
        ClusteredClassifier
            Itself.
        """
        features, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y must hold at least two classes, got one class: {classes.tolist()[0]!r}")
        self.classes_ = classes
        return self._fit(features, codes.astype(np.float64), groups)

    def predict(self, X: Any, groups: ArrayLike | None = None, *, cluster: int | None = None) -> NDArray[Any]:
        """The most probable classes by the models of the sites.

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
            Labels of `classes_`.
        """
        chosen = self._predicted(X, groups, cluster).argmax(axis=1)
        found: NDArray[Any] = self.classes_[chosen]
        return found

    def predict_proba(self, X: Any, groups: ArrayLike | None = None, *, cluster: int | None = None) -> Floats:
        """The probabilities of the classes by the models of the sites.

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
        ndarray of shape (n_samples, n_classes)
            Probabilities, in the order of `classes_`.
        """
        return self._predicted(X, groups, cluster)

    def score(
        self, X: Any, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """The share of the rows whose class is predicted, over all rows together.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
            The features.
        y : array-like of shape (n_samples,)
            The classes.
        groups : array-like of shape (n_samples,), optional
            The site of every row, as for `predict`.
        sample_weight : array-like of shape (n_samples,), optional
            The weights of the rows.

        Returns
        -------
        float
            The accuracy.
        """
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _expected(self, features: Floats, coefficients: Floats, intercepts: Floats, number: int) -> Floats:
        scores = features @ coefficients[number].T + intercepts[number]
        if scores.shape[1] > 1:
            found: Floats = softmax(scores, axis=1)
            return found
        positive = expit(scores[:, 0])
        return np.column_stack([1 - positive, positive])

    def _targets(self, y: Any) -> Floats:
        known = {label: number for number, label in enumerate(self.classes_.tolist())}
        labels = column_or_1d(np.asarray(y)).tolist()
        for label in labels:
            if label not in known:
                raise ValueError(f"y must hold classes of the fit, got {label!r}")
        return np.array([known[label] for label in labels], dtype=np.float64)
