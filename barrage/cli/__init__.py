"""The ``barrage`` command: a plain user of :mod:`barrage.client` and :mod:`barrage.server`."""
