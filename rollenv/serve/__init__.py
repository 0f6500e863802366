"""``rollenv serve``: environments and sandboxes for any client, from one process in front of worker processes."""
