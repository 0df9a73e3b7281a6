"""Models behind one protocol: what transformers loads, and control models made of counts."""
