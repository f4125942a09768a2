"""Federations of real sites over Flower, which `pip install 'coterie[flower]'` brings.

`apps` makes both apps of a Flower project from one configuration. With a task or an algorithm of your own, `client_app`
makes the app that a site runs, and `ClusteredStrategy` runs an algorithm in the server's app. `docs/federation.md` is
the guide for administrators, `examples/flower` a whole Flower project.
"""

from coterie._src.federation.apps import apps
from coterie._src.federation.client import client_app
from coterie._src.federation.strategy import ClusteredStrategy

__all__ = ["ClusteredStrategy", "apps", "client_app"]
