"""Barrage tables as sources and sinks of Spark Structured Streaming.

Users come in through ``format("barrage")`` or :mod:`barrage.spark`. Nothing here is imported
before it is needed: Spark's workers load this package in many short-lived processes, and
``pyspark`` itself may be missing.
"""
