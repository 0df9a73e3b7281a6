"""Linear attention whose key channels forget at rates that depend on the token."""
