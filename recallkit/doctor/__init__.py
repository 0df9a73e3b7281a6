"""`doctor`: whether recallkit can work here, and what an installation takes."""
