"""onenth: a node agent that programs Kubernetes Services as netfilter rules."""

__version__ = "0.1.0"
