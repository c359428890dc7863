"""One file per command; :mod:`barrage.cli.main` puts them together."""
