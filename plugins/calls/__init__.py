"""How families of models write calls of functions, each file a form (entry points ``rollenv.calls``)."""
