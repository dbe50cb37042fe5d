"""Rules compared with kube-proxy's, text for text."""
