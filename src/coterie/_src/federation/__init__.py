"""Coterie over a network: transport by Flower (`coterie[flower]`), everything else as in the simulation.

`client_app` wraps any task into the app that a site runs, `FlowerNetwork` is the clients as an algorithm sees them, and
`ClusteredStrategy` plays an algorithm against it, keeping every finished round on disk.
"""

from coterie._src.federation.apps import apps
from coterie._src.federation.client import client_app
from coterie._src.federation.messages import Answer, Question
from coterie._src.federation.network import FlowerNetwork, Members
from coterie._src.federation.strategy import ClusteredStrategy

__all__ = ["Answer", "ClusteredStrategy", "FlowerNetwork", "Members", "Question", "apps", "client_app"]
