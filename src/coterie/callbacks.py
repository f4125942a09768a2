"""Callbacks, which are called while a run goes on: a base class for your own, and trackers.

`ct.fit(…, callbacks=[MLflow("sqlite:///mlflow.db")])` sends options, metrics by round and results to MLflow, which
`pip install 'coterie[mlflow]'` brings; `TensorBoard` needs `coterie[tensorboard]`, `JSONLines` nothing. On the command
line they are `coterie run --track`. `docs/trackers.md` says what each of them keeps.
"""

from coterie._src.experiments.callbacks import Callback, RunInfo
from coterie._src.tracking import JSONLines, MLflow, TensorBoard
from coterie._src.tracking.pyfunc import _load_pyfunc  # noqa: F401 - where models in MLflow look for it

__all__ = ["Callback", "JSONLines", "MLflow", "RunInfo", "TensorBoard"]
