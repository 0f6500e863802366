"""Forms in which families of models write calls of functions, a file for each (entry points ``rollenv.calls``)."""
