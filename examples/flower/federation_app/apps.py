"""Server and client, from config.toml beside this file."""

from pathlib import Path

from coterie.federation import apps

both = apps(Path(__file__).with_name("config.toml"))
server = both[0]  # Flower looks for plain names
client = both[1]
