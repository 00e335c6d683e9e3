"""Structured output: answers that follow a JSON schema, a regular expression, a grammar.

``native`` is the library, ``vocabulary`` a model's tokens for it, ``grammar`` makes its input from
``StructuredOutputsParams``.  ``validator`` (in the front end) tries each grammar in a child process;
``compiler`` (in the engine) compiles what passed beside the steps; a ``matcher`` goes with each sample,
``bitmask`` puts their masks on the logits, ``requests`` ties all this to the engine's step.
"""
