"""``onenth demo``: a node, three pods and a client in network namespaces."""
