"""The connectors that ship: files, HTTP, PostgreSQL, Redis, MQTT and Kafka."""
