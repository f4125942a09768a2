"""The app that a site runs: the client half of the simulation, on the site's own data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from coterie._src.arrays import as_numpy, like
from coterie._src.attacks import Attack
from coterie._src.federation.messages import NOTHING, Answer, Question, read_question
from coterie._src.simulation import SimulatedNetwork, stream
from coterie._src.tasks import Task

Load = Callable[[Context], Task]
"""From a node's context (`node_config`, `run_config`) to the task on its data: one client."""


def client_app(load: Load, attack: Callable[[Context], Attack | None] = lambda context: None) -> ClientApp:
    """An app that answers the server's questions from one client's data.

    load: reads the data of this site. attack: for drills, what this site does instead of answering honestly; it sees
    nothing but its own data. A question that makes no sense, or data that cannot be read, is an error to Flower, which
    tells the server; the site stays up.
    """
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        task = load(context)
        if task.clients.count != 1:
            raise ValueError(f"a site is one client, but its data hold {task.clients.count}")
        found = respond_to(read_question(message.content), task, attack(context), int(context.node_id))
        return Message(found.record(), reply_to=message)

    return app


def respond_to(question: Question, task: Task, attack: Attack | None = None, node: int = 0) -> Answer:
    """One site's answer, by the network of the simulation with one client in it."""
    if question.centres.shape[1] != task.dim and question.kind in ("gradient", "loss"):
        raise ValueError(f"question: centres have {question.centres.shape[1]} parameters, this model has {task.dim}")
    lying = np.array([attack is not None])
    adversary = stream(node % 2**63, max(question.round, 0), "attack")
    network = SimulatedNetwork(task, lying, attack, adversary, memory=None)
    centres = like(question.centres, task.clients.features)
    samples, loss, margin = int(task.clients.sizes[0]), None, None
    if question.kind == "gradient":
        labels = None if question.label == NOTHING else np.array([question.label])
        replies = network.gradients(centres, question.round, labels, question.part)
        losses = np.sort(as_numpy(task.losses(centres))[0].astype(np.float64))
        loss, margin = float(losses[0]), float(losses[1] - losses[0]) if len(losses) > 1 else 0.0
    elif question.kind == "loss":
        replies = network.losses(centres, question.part, question.computing)
    elif question.kind == "minimiser":
        replies = network.minimisers(centres, question.ridge, question.part)
    elif question.kind == "curvature":
        replies = network.curvatures(None if question.part is None else question.part[1])
    else:
        replies = network.sizes()
    update = as_numpy(replies.updates[0])
    if question.kind in ("gradient", "loss", "minimiser"):
        update = update.astype(question.centres.dtype)
    return Answer(question.round, int(replies.labels[0]), update, samples, loss, margin)
