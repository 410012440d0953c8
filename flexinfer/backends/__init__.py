"""One rollout protocol and its implementations."""
