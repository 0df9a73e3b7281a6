"""Linear attention whose state forgets by channel and has one key taken out as another is written."""
