"""The proxy between agents that are programs of their own and the policy: calls in, drawn tokens kept."""
