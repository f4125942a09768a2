"""Federations of real sites: Flower (`coterie[flower]`) carries the messages, everything else is as in the simulation.

`client_app` makes the app of a site from any task, `FlowerNetwork` is the sites as an algorithm sees them, and
`ClusteredStrategy` runs an algorithm against it and saves every finished round. `evaluate_sites` asks the sites how
good their models are.
"""

from coterie._src.federation.apps import apps
from coterie._src.federation.client import client_app
from coterie._src.federation.evaluation import Evaluation, evaluate_sites
from coterie._src.federation.messages import Answer, Question
from coterie._src.federation.network import FlowerNetwork
from coterie._src.federation.numbering import ClientNumbers
from coterie._src.federation.site import Site
from coterie._src.federation.strategy import ClusteredStrategy

Members = ClientNumbers  # its name in version 0.1.0, for `coterie.flower`

__all__ = [
    "Answer",
    "ClientNumbers",
    "ClusteredStrategy",
    "Evaluation",
    "FlowerNetwork",
    "Question",
    "Site",
    "apps",
    "client_app",
    "evaluate_sites",
]
