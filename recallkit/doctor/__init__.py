"""`doctor`: what a bug report needs."""
