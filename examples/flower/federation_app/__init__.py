"""The app that the server and all sites of a federation run."""
