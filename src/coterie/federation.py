"""Federations of real sites over Flower, which `pip install 'coterie[flower]'` brings.

`apps` makes both apps of a Flower project from one configuration. With a task or an algorithm of your own, `client_app`
makes the app that a site runs from a task or a `Site`, `ClusteredStrategy` runs an algorithm in the server's app, and
`evaluate_sites` asks the sites how good their models are. `docs/federation.md` is the guide for administrators,
`examples/flower` a whole Flower project.
"""

from coterie._src.federation.apps import apps
from coterie._src.federation.client import client_app
from coterie._src.federation.evaluation import Evaluation, evaluate_sites
from coterie._src.federation.site import Site
from coterie._src.federation.strategy import ClusteredStrategy

__all__ = ["ClusteredStrategy", "Evaluation", "Site", "apps", "client_app", "evaluate_sites"]
