"""Stores: where events are kept. Every store keeps the one protocol of ``base`` and passes the one conformance suite."""
