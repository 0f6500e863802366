"""A proxy between external agent programs and the policy, which records the tokens of their calls."""
