"""Where documents come from: files, the hub, the embedded text; each a shard behind one protocol."""
