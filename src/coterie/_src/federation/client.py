"""The app that a site runs: the client's half of a round, on the site's own data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from coterie._src.arrays import as_numpy, like
from coterie._src.attacks import Attack
from coterie._src.federation.messages import OWN_CHOICE, Answer, Question, read_question
from coterie._src.federation.site import Site, evaluated_site, write_models
from coterie._src.federation.site_reports import read_request
from coterie._src.simulation import SimulatedNetwork, stream
from coterie._src.tasks import Task

LoadSite = Callable[[Context], Task | Site]


def client_app(load: LoadSite, attack: Callable[[Context], Attack | None] = lambda context: None) -> ClientApp:
    """Return a Flower app that answers the server's questions from one client's data.

    Parameters
    ----------
    load
        Reads the data of this site: from the context of a node (`node_config`, `run_config`) to the task on its data,
        which are those of one client; or to a `Site`, which also has rows that it held out.
    attack
        For rehearsals: the attack that this site runs instead of answering honestly, which sees nothing but the site's
        own data; None for an honest site. It changes no report.

    Returns
    -------
    ClientApp
        The app. It learns from the rows of the task alone. When the server asks for a report (`evaluate_sites`), it
        sends the scores of the models that the site could use, on the rows that the site held out, and writes these
        models into the folder of the site. Where a question is invalid, or the data cannot be read, it raises an error,
        which Flower reports to the server; the site keeps running.

    Examples
    --------
    A site that estimates a mean of the numbers in the file that its node configuration names:

    >>> import numpy as np
    >>> from coterie._src.data import Clients
    >>> from coterie._src.tasks import mean_estimation
    >>> def load(context):
    ...     samples = np.load(context.node_config["data"])
    ...     return mean_estimation(Clients(samples, None, np.array([len(samples)])))
    >>> client = client_app(load)
    """
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        task = _site(load(context)).task
        found = respond_to(read_question(message.content), task, attack(context), int(context.node_id))
        return Message(found.record(), reply_to=message)

    @app.evaluate()
    def report(message: Message, context: Context) -> Message:
        site, request = _site(load(context)), read_request(message.content)
        found, models = evaluated_site(site, request)
        write_models(site, request, found, models)
        return Message(found.record(), reply_to=message)

    return app


def _site(loaded: Task | Site) -> Site:
    return loaded if isinstance(loaded, Site) else Site(loaded)


def respond_to(question: Question, task: Task, attack: Attack | None = None, node: int = 0) -> Answer:
    """Return the answer of one site, computed by the simulated network with one client in it."""
    if question.centres.shape[1] != task.dim and question.kind in ("gradient", "loss", "hessian"):
        raise ValueError(f"question: centres have {question.centres.shape[1]} parameters, this model has {task.dim}")
    is_byzantine = np.array([attack is not None])
    rng = stream(node % 2**63, max(question.round, 0), "attack")
    network = SimulatedNetwork(task, is_byzantine, attack, rng, cache=None)
    centres = like(question.centres, task.clients.features)
    samples, loss, margin = int(task.clients.sizes[0]), None, None
    if question.kind == "gradient":
        labels = None if question.label == OWN_CHOICE else np.array([question.label])
        replies = network.gradients(centres, question.round, labels, question.part)
        losses = np.sort(as_numpy(network.working_task.losses(centres))[0].astype(np.float64))
        loss, margin = float(losses[0]), float(losses[1] - losses[0]) if len(losses) > 1 else 0.0
    elif question.kind == "loss":
        replies = network.losses(centres, question.part, question.computing)
    elif question.kind == "minimiser":
        replies = network.minimisers(centres, question.ridge, question.part)
    elif question.kind == "curvature":
        replies = network.curvatures(None if question.part is None else question.part[1])
    elif question.kind == "hessian":
        replies = network.hessians(centres, np.array([question.label]))
    else:
        replies = network.sizes()
    update = as_numpy(replies.updates[0])
    if question.kind in ("gradient", "loss", "minimiser"):
        update = update.astype(question.centres.dtype)
    return Answer(question.round, int(replies.labels[0]), update, samples, loss, margin)
