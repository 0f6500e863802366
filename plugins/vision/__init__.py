"""Families of models that see, by transformers' ``model_type`` (entry points ``rollenv.vision``)."""
