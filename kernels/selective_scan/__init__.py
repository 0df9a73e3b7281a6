"""Mamba's selective scan: a diagonal linear recurrence whose step, input and output depend on the
token."""
