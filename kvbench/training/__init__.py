"""Training KVP's agents from traces (arXiv:2602.10238): what is minimised, how tokens are drawn, the loop around it."""
