"""Bytes and files: messages, digests, settings, and files that are whole or not there."""
