"""tau2-bench's telecom domain: the agent has the company's records, the customer has the phone."""
