"""Coterie over a network: transport by Flower (`coterie[flower]`), everything else as in the simulation.

`client_app` wraps any task into the app that a site runs, `FlowerNetwork` is the clients as an algorithm sees them, and
`ClusteredStrategy` plays an algorithm against it, keeping every finished round on disk.
"""

from coterie.flower.apps import apps
from coterie.flower.client import client_app
from coterie.flower.messages import Answer, Question
from coterie.flower.network import FlowerNetwork, Members
from coterie.flower.strategy import ClusteredStrategy

__all__ = ["Answer", "ClusteredStrategy", "FlowerNetwork", "Members", "Question", "apps", "client_app"]
