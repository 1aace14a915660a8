"""The benchmark behind ``tools/bench.py``: one question a module, over a shared harness."""
