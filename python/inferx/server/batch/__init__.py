"""Batches: files of requests, answered in the background or by ``inferx run-batch``.

``lines`` the file format · ``answer`` one request through the endpoints' own functions · ``record`` which
lines are done, in the output files themselves · ``run`` all requests of a file · ``store`` files and batches
of a server, in SQLite · ``service`` the server's batches, running.
"""
