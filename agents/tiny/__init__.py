"""The tiny model, which is built, gets a tokenizer and is warmed up when a run needs it."""
