"""What both estimators have in common: parameters, sites, fitting by `ct.fit`, and looking up the model of a row."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Mapping
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from coterie._src.arrays import Floats, Ints
from coterie._src.data import Clients
from coterie._src.estimators import saving
from coterie._src.experiments.config import AlgorithmSection
from coterie._src.experiments.method_setting import max_byzantine_count
from coterie._src.fitting import Result, fit
from coterie._src.membership import Membership, cluster_of
from coterie._src.suspicion import trusted_clusters
from coterie._src.tasks import TASKS, LinearModel

PARAMETERS = {
    "clusters": "n_clusters",
    "max_byzantine": "max_byzantine",
    "personalise": "personalise",
    "rounds": "max_rounds",
}
"""The options of `ct.fit` that are parameters of the estimators, by their names there."""


class ClusteredModel(BaseEstimator):  # type: ignore[misc]
    """One linear model per cluster of sites; see `ClusteredRegressor` for the parameters."""

    # with metadata routing, `groups` reaches these methods unless the user asks for something else
    __metadata_request__fit: ClassVar = {"groups": True}
    __metadata_request__predict: ClassVar = {"groups": True, "cluster": UNUSED}
    __metadata_request__score: ClassVar = {"groups": True}

    def __init__(
        self,
        n_clusters: Any = 2,
        *,
        max_byzantine: Any = 0.05,
        method: str = "coterie",
        personalise: str = "shrink",
        unknown: str = "raise",
        fit_intercept: bool = True,
        max_rounds: int = 300,
        options: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_byzantine = max_byzantine
        self.method = method
        self.personalise = personalise
        self.unknown = unknown
        self.fit_intercept = fit_intercept
        self.max_rounds = max_rounds
        self.options = options
        self.random_state = random_state

    # --- fitting --------------------------------------------------------------------------------------

    def _fit(self, features: Floats, targets: Floats, groups: Any) -> Self:
        """Fit from checked features and targets, and set the attributes."""
        self._check_parameters()
        sites, places = self._sites_and_places(groups, len(features))
        clusters = 1 if len(sites) == 1 and (groups is None or self.n_clusters == "auto") else self.n_clusters
        order = np.argsort(places, kind="stable")
        clients = Clients(
            self._with_ones(features[order]),
            targets[order],
            np.bincount(places, minlength=len(sites)),
            tuple(str(site) for site in sites.tolist()),
        )
        task = self._task_name
        try:
            result = fit(
                clients,
                task,
                clusters,
                self.max_byzantine,
                self.method,
                self._seed(),
                classes=self._classes if task == "softmax" else None,
                **{
                    "coordinates": "hessian",
                    "personalise": self.personalise,
                    "rounds": self.max_rounds,
                    **(self.options or {}),
                },
            )
        except ValueError as error:
            raise ValueError(re.sub(r"^\w+", lambda name: PARAMETERS.get(name[0], name[0]), str(error))) from None
        labels = result.labels
        if result.personal is None and (labels < 0).any():
            raise ValueError(f"method: {self.method} puts site {clients.names[int(labels.argmin())]} into no cluster")
        self.sites_ = sites
        found = result.diagnostics
        bound = max_byzantine_count(self.max_byzantine, len(sites)) if found is None else found.max_byzantine
        self._keep(result, bound)
        return self

    def _keep(self, result: Result, bound: int) -> None:
        """Set the attributes that come from the result."""
        labels = self.labels_ = result.labels
        self.n_clusters_ = len(result.centres)
        self.n_iter_ = int(result.metrics["rounds"])
        self.coef_, self.intercept_ = self._coefficients(result.centres)
        models = result.centres[labels] if result.personal is None else result.personal
        self.site_coef_, self.site_intercept_ = self._coefficients(models)
        sizes = np.bincount(labels[labels >= 0], minlength=self.n_clusters_)
        counted = sizes * trusted_clusters(labels, self.n_clusters_, bound)
        self.cluster_weights_ = counted / counted.sum()
        self.diagnostics_ = result.diagnostics
        self._membership = result.membership
        known = [row.get("suspicion", "") for row in result.audit]
        scores = np.array([np.nan if score == "" else score for score in known], dtype=np.float64)
        self._suspicion = scores, [row.get("evidence", "") for row in result.audit]

    @property
    def suspicion_(self) -> Any:
        """The sites that stand out most first, as a frame; made when it is asked for, so that a fit loads no pandas."""
        if not hasattr(self, "_suspicion"):
            raise AttributeError(f"{type(self).__name__} is not fitted and has no suspicion_")
        scores, reasons = self._suspicion
        order = np.argsort(-scores, kind="stable")
        return as_frame(
            {
                "site": self.sites_[order],
                "cluster": self.labels_[order],
                "score": scores[order],
                "reasons": np.array(reasons, dtype=object)[order],
            }
        )

    def _check_parameters(self) -> None:
        """What `ct.fit` does not check."""
        if self.unknown not in ("raise", "global"):
            raise ValueError(f'unknown must be "raise" or "global", got {self.unknown!r}')
        if not isinstance(self.method, str):
            raise ValueError(f"method must be the name of a method, got {self.method!r}")
        if self.options is not None and not isinstance(self.options, Mapping):
            raise ValueError(f"options must be None or a mapping from names to values, got {self.options!r}")
        for name in self.options or ():
            if name not in AlgorithmSection.model_fields or name in PARAMETERS:
                known = [one for one in AlgorithmSection.model_fields if one not in PARAMETERS]
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"use {PARAMETERS[name]}" if name in PARAMETERS else f"did you mean {near[0]}?" if near else ""
                raise ValueError(f"options: {name}: unknown option{hint and '; '}{hint}")

    def _seed(self) -> int:
        """A whole number for `ct.fit`: the random state itself, if it is one, or drawn from it."""
        generator = check_random_state(self.random_state)
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(generator.randint(np.iinfo(np.int32).max))

    def _sites_and_places(self, groups: Any, rows: int) -> tuple[NDArray[Any], Ints]:
        """The names of the sites in their order, and for every row the number of its site."""
        if groups is not None:
            sites, places = np.unique(site_names(groups, rows), return_inverse=True)
            return sites, places
        if self.n_clusters != 1:
            warnings.warn(
                "groups: none are given, so all rows count as one site with one model; give the site of every row, "
                "or n_clusters=1",
                UserWarning,
                stacklevel=4,
            )
        return np.array([0]), np.zeros(rows, dtype=np.int64)

    # --- parameters as vectors and as coefficients ----------------------------------------------------

    @property
    def _task_name(self) -> str:
        """The task of `ct.fit`."""
        raise NotImplementedError

    @property
    def _classes(self) -> int:
        """The number of classes; 2 where there are none."""
        return 2

    @property
    def _outputs(self) -> int:
        """The number of scores that a model gives a row."""
        return self._classes if self._task_name == "softmax" else 1

    def _with_ones(self, features: Floats) -> Floats:
        return np.column_stack([features, np.ones(len(features))]) if self.fit_intercept else features

    def _coefficients(self, models: Floats) -> tuple[Floats, Floats]:
        """(r, dim) models -> (r, outputs, columns) coefficients and (r, outputs) intercepts."""
        weights = models.reshape(len(models), -1, self._outputs)
        columns = self.n_features_in_
        intercepts = weights[:, columns] if weights.shape[1] > columns else np.zeros((len(models), self._outputs))
        return self._shaped(weights[:, :columns].swapaxes(1, 2).copy()), self._shaped(intercepts.copy())

    def _shaped(self, values: Floats) -> Floats:
        """Coefficients or intercepts, of shape (r, outputs, …), in the shape of the public attributes."""
        return values

    def _models(self) -> Floats:
        """(k, dim): the models of the clusters as `ct.fit` has them."""
        k = self.n_clusters_
        weights = self.coef_.reshape(k, self._outputs, -1).swapaxes(1, 2)
        if self.fit_intercept:
            weights = np.concatenate([weights, self.intercept_.reshape(k, 1, self._outputs)], axis=1)
        found: Floats = weights.reshape(k, -1)
        return found

    # --- using ----------------------------------------------------------------------------------------

    def _predicted(self, X: Any, groups: Any, cluster: int | None) -> Floats:
        """(n, outputs): the expected targets, or the probabilities of the classes, of every row."""
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float64, reset=False)
        if cluster is not None:
            if groups is not None:
                raise ValueError("predict: name groups or a cluster, and not both")
            return self._expected(features, self.coef_, self.intercept_, self._checked_cluster(cluster))
        places = self._places_of(groups, len(features))
        order = np.argsort(places, kind="stable")
        found: Floats | None = None
        for rows in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
            site = int(places[rows[0]])
            if site >= 0:
                part = self._expected(features[rows], self.site_coef_, self.site_intercept_, site)
            else:
                part = sum(
                    weight * self._expected(features[rows], self.coef_, self.intercept_, j)
                    for j, weight in enumerate(self.cluster_weights_.tolist())
                    if weight > 0
                )
            if found is None:
                found = np.empty((len(features), part.shape[1]))
            found[rows] = part
        assert found is not None
        return found

    def _expected(self, features: Floats, coefficients: Floats, intercepts: Floats, number: int) -> Floats:
        """(n, outputs): the expected targets, or the probabilities of the classes, by one of several models."""
        raise NotImplementedError

    def _places_of(self, groups: Any, rows: int) -> Ints:
        """(n,): the number of every row's site; -1 for one that was not in the fit, where that is allowed."""
        if groups is None:
            if len(self.sites_) == 1:
                return np.zeros(rows, dtype=np.int64)
            if self.unknown == "global":
                return np.full(rows, -1)
            raise ValueError(
                f"groups: the fit has {len(self.sites_)} sites; give the site of every row, or the cluster "
                '(unknown="global" predicts without)'
            )
        given, places = np.unique(site_names(groups, rows), return_inverse=True)
        known = {site: number for number, site in enumerate(self.sites_.tolist())}
        numbers = np.array([known.get(site, -1) for site in given.tolist()])
        if self.unknown != "global" and (numbers < 0).any():
            first = given[numbers < 0].tolist()[0]
            other = next((site for site in known if str(site) == str(first)), None)
            if other is not None:
                raise ValueError(f"groups: site {first!r} was not in the fit, which has {other!r}")
            raise ValueError(
                f"groups: site {first!r} was not in the fit; assign(X, y) finds the cluster "
                'of new samples (unknown="global" predicts by the mean of the clusters)'
            )
        found: Ints = numbers[places]
        return found

    def _checked_cluster(self, cluster: Any) -> int:
        is_whole = isinstance(cluster, Integral) and not isinstance(cluster, bool)
        if not is_whole or not 0 <= cluster < self.n_clusters_:
            raise ValueError(f"cluster must be a whole number from 0 to {self.n_clusters_ - 1}, got {cluster!r}")
        return int(cluster)

    def assign(self, X: Any, y: ArrayLike, *, nearest: bool = False) -> int:
        """The cluster whose model has the lowest loss on the samples of a new site, -1 if they fit none.

        They fit none if a member of that cluster would have such a loss with a probability of less than 1 %.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
            The features of one site.
        y : array-like of shape (n_samples,)
            Its targets.
        nearest : bool, default False
            Return the cluster of lowest loss in any case.

        Returns
        -------
        int
            The cluster, for `predict(X, cluster=…)`, or -1.
        """
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float64, reset=False)
        check_consistent_length(features, y)
        client = Clients(self._with_ones(features), self._targets(y), np.array([len(features)]))
        task: LinearModel = TASKS[self._task_name].model(client, self._classes)
        membership: Membership | None = None if nearest else self._membership
        with np.errstate(all="ignore"):
            return cluster_of(task, self._models(), membership)

    def _targets(self, y: Any) -> Floats:
        """(n,): the targets of a fitted model's task, as `ct.fit` takes them."""
        raise NotImplementedError

    # --- files ----------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file: arrays as safetensors, all else as JSON in its header, no pickle.

        Parameters
        ----------
        path : str or path
            The file. A random state that is no whole number is saved as None.
        """
        check_is_fitted(self)
        saving.save(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The estimator that `save` wrote; everything in the file is checked.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        ClusteredRegressor or ClusteredClassifier
            Fitted, of this class.
        """
        found: Self = saving.load(cls, Path(path))
        return found


def as_frame(columns: Mapping[str, NDArray[Any]]) -> Any:
    """A frame of pandas, without it one of Polars, and without both the columns as they are."""
    for library in ("pandas", "polars"):
        try:
            return import_module(library).DataFrame(dict(columns))
        except ModuleNotFoundError:
            continue
    return dict(columns)


def site_names(groups: Any, rows: int) -> NDArray[Any]:
    """(n,): the site of every row, as an array of strings or of numbers, or the reason why they are none.

    >>> site_names(["oslo", "bern"], 2).tolist(), site_names(np.array([3, 1]), 2).tolist()
    (['oslo', 'bern'], [3, 1])
    """
    given = np.asarray(groups)
    if given.ndim != 1 and given.shape != (rows, 1):
        raise ValueError(f"groups must be a column with the site of every row, got shape {given.shape}")
    given = given.ravel()
    if len(given) != rows:
        raise ValueError(f"groups must name the site of every row ({rows}), got {len(given)}")
    cells = given.tolist()
    for row, cell in enumerate(cells):
        if not isinstance(cell, str | Real) or cell != cell:  # noqa: PLR0124
            raise ValueError(f"groups: row {row} must name a site by a string or a number, got {cell!r}")
    if len({isinstance(cell, str) for cell in cells}) > 1:
        raise ValueError("groups must hold strings or numbers, and not both")
    return np.array(cells)
