"""The kernel and its tools: iptables, conntrack, nfacct, sysctls, addresses."""
