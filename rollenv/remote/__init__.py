"""The client of ``rollenv serve``: a served environment is an ordinary :class:`rollenv.Env`.

``rollenv.make("rollenv+ws://HOST:PORT/ENV_ID")`` makes one. Several servers, separated by commas, share the load; if
one dies, its episodes continue on another.
"""
