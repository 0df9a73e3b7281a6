"""The stages, one module each: streams and tables in, streams and tables out; none imports another."""
