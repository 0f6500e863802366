"""Service tasks: an agent with functions and a policy, and a user with a goal, facts and a persona."""
