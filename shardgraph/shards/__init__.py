"""Shards on disk: write one, open one, gather rows of many graphs from many."""
