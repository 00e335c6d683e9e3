"""The ``inferx`` command."""
