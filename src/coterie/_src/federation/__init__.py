"""Federations of real sites: Flower (`coterie[flower]`) carries the messages, everything else is as in the simulation.

`client_app` makes the app of a site from any task, `FlowerNetwork` is the sites as an algorithm sees them, and
`ClusteredStrategy` runs an algorithm against it and saves every finished round. `evaluate_sites` asks the sites how
good their models are. These need Flower, and are loaded when they are first used: what a federation has written
can be read without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie._src.federation.client import client_app
    from coterie._src.federation.evaluation import Evaluation, evaluate_sites
    from coterie._src.federation.messages import Answer, Question
    from coterie._src.federation.network import FlowerNetwork
    from coterie._src.federation.numbering import ClientNumbers
    from coterie._src.federation.site import Site
    from coterie._src.federation.strategy import ClusteredStrategy

MODULES = {
    "Answer": "messages",
    "ClientNumbers": "numbering",
    "ClusteredStrategy": "strategy",
    "Evaluation": "evaluation",
    "FlowerNetwork": "network",
    "Question": "messages",
    "Site": "site",
    "client_app": "client",
    "evaluate_sites": "evaluation",
}
"""The modules of the names."""


def __getattr__(name: str) -> Any:
    name = "ClientNumbers" if name == "Members" else name  # its name in version 0.1.0, for `coterie.flower`
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)


__all__ = [
    "Answer",
    "ClientNumbers",
    "ClusteredStrategy",
    "Evaluation",
    "FlowerNetwork",
    "Question",
    "Site",
    "client_app",
    "evaluate_sites",
]
