"""What the commands do that are not the daemon; ``agent.cli`` parses and prints."""
