"""Whether recallkit can work here: what is installed, what the machine has, what stands in the way."""
