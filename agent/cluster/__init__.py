"""What the API server says: objects, and the ways they reach the agent."""
