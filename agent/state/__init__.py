"""What the agent knows: service ports and endpoints, stamped with generations. Pure."""
