"""The app that a site runs: the client's half of a round, on the site's own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from coterie._src.arrays import as_numpy, like
from coterie._src.attacks import Attack
from coterie._src.federation.flower import log
from coterie._src.federation.guard import Guard, Reply, answer_reply, private_answer, report_reply
from coterie._src.federation.messages import OWN_CHOICE, SITE_ERROR, Answer, Question, read_question, refusal_record
from coterie._src.federation.site import Site, evaluated_site, write_models
from coterie._src.federation.site_log import LOG, SiteLog
from coterie._src.federation.site_policy import SitePolicy, read_policy
from coterie._src.federation.site_reports import Request, read_request
from coterie._src.simulation import SimulatedNetwork, stream
from coterie._src.tasks import Task

LoadSite = Callable[[Context], Task | Site]
Read = Callable[[RecordDict], Question | Request]


NO_POLICY = SitePolicy(min_held_out=1)
"""For data that need no protection. No question is judged by it."""


def client_app(
    load: LoadSite, attack: Callable[[Context], Attack | None] = lambda context: None, *, guarded: bool = True
) -> ClientApp:
    """Return a Flower app that answers the server's questions from one client's data, under its policy.

    Parameters
    ----------
    load
        Reads the data of this site: from the context of a node (`node_config`, `run_config`) to the task on its data,
        which are those of one client; or to a `Site`, which also has rows that it held out.
    attack
        For rehearsals: the attack that this site runs instead of answering honestly, which sees nothing but the site's
        own data; None for an honest site. It changes no report.
    guarded
        Whether a site whose node configuration names no policy (`policy="…/site.toml"`) is under the default one; its
        log is then beside its `models`, or ends with the process. False is for data that need no protection, such as
        those of a rehearsal.

    Returns
    -------
    ClientApp
        The app. It learns from the rows of the task alone. When the server asks for a report (`evaluate_sites`), it
        sends the scores of the models that the site could use, on the rows that the site held out, and writes these
        models into the folder of the site. What the policy does not let it answer, it refuses with a code. Errors, such
        as of data that cannot be read, are refusals too, and their text stays in the site's log; without a policy they
        are raised, and Flower reports them to the server.

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
    logs: dict[int, SiteLog] = {}

    def reply(
        message: Message, context: Context, read: Read, respond: Callable[[Any, Site, SitePolicy], Reply]
    ) -> Message:
        def read_message() -> Any:
            return read(message.content)

        def site() -> Site:
            return _site(load(context))

        if "policy" not in context.node_config and not guarded:
            return Message(respond(read_message(), site(), NO_POLICY)[0], reply_to=message)
        try:
            guard = _guard(context.node_config, logs, context.node_id)
        except (OSError, ValueError) as error:  # without its rules a site answers nothing
            log(WARNING, "the site's policy cannot be read, so nothing is answered: %s", error)
            return Message(refusal_record(SITE_ERROR), reply_to=message)
        content = guard.reply(
            read_message,
            site,
            lambda question, data: respond(question, data, guard.policy),
            str(message.metadata.run_id),
        )
        return Message(content, reply_to=message)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        def respond(question: Question, site: Site, policy: SitePolicy) -> Reply:
            def honest(asked: Question) -> Answer:
                return respond_to(asked, site.task, attack(context), int(context.node_id))

            return answer_reply(private_answer(policy, question, honest))

        return reply(message, context, read_question, respond)

    @app.evaluate()
    def report(message: Message, context: Context) -> Message:
        def respond(request: Request, site: Site, policy: SitePolicy) -> Reply:
            few = site.held_out is not None and int(site.held_out.sizes[0]) < policy.min_held_out
            found, models = evaluated_site(replace(site, held_out=None) if few else site, request)
            write_models(site, request, found, models)
            return report_reply(found)

        return reply(message, context, read_request, respond)

    return app


def _guard(config: Mapping[str, Any], logs: dict[int, SiteLog], node: int) -> Guard:
    """The policy that a node's configuration names, or the default one, with its log.

    The log is beside the policy, or for the default one beside the folder of the site's models; without one in memory.
    """
    if "policy" in config:
        path = Path(str(config["policy"]))
        return Guard(read_policy(path), SiteLog(path.parent / LOG))
    if "models" in config:
        return Guard(SitePolicy(), SiteLog(Path(str(config["models"])).parent / LOG))
    return Guard(SitePolicy(), logs.setdefault(node, SiteLog(None)))


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
