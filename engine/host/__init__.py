"""The process and machine that the supervisor runs on."""
