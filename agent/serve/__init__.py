"""What the agent answers over HTTP: metrics, health, and health check node ports."""
