"""A run, a sweep or a federation that is under way, as a local page and as metrics for Prometheus.

`sources` and `federated` read what is on disk into a `Snapshot`; `page` and `metrics` write it as HTML and as text;
`server` serves both on loopback. Nothing here writes into the folder, locks its files or talks to what it watches.
"""
