"""The client's side of ``rollenv serve``: a served environment is an ordinary :class:`rollenv.Env`.

``rollenv.make("rollenv+ws://HOST:PORT/ENV_ID")`` makes one. Several servers, separated by commas, share the load; an
episode goes on at another one when its server dies.
"""
