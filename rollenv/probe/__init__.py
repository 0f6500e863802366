"""The probe of an environment before a run: can it teach this model, and can it be cheated?

``floors`` plays what needs no skill, ``repeat`` plays episodes again in a second process, ``teach`` counts what a group
would teach, ``verdict`` says it in words with settings, ``page`` shows it, and ``run`` does all of that.
"""
