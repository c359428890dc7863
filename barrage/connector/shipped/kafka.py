"""Records of one partition of a Kafka topic; its offsets are the ids.

The consumer is told where to begin and commits nothing: the position is with the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.connector.messages import MessageBatch
from barrage.connector.source import SyncSource
from barrage.errors import ConfigError, SourceLostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RECORDS_MAX = 2_000
WAIT_SECONDS = 0.2
START_SECONDS = 30.0


def _library() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise ConfigError("Kafka needs a library: pip install 'barrage[connectors]'") from None
    return confluent_kafka


def partitions_of(servers: str, topic: str, settings: Mapping[str, Any]) -> list[int]:
    """The partitions of a topic; ConfigError when there is none."""
    kafka = _library()
    consumer = kafka.Consumer(
        {**settings, "bootstrap.servers": servers, "group.id": "barrage", "log_level": 0}
    )
    try:
        found = consumer.list_topics(topic, timeout=START_SECONDS).topics[topic]
    except kafka.KafkaException as error:
        raise ConfigError(f"Kafka at {servers}: {error}") from None
    finally:
        consumer.close()
    if found.error is not None or not found.partitions:
        raise ConfigError(f"Kafka at {servers} has no topic {topic!r}")
    return sorted(found.partitions)


class KafkaPartition(SyncSource):
    """One partition. SourceLostError when the broker has deleted records that nobody has read."""

    def __init__(
        self,
        servers: str,
        topic: str,
        partition: int,
        *,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
        follows: bool = True,
    ) -> None:
        self.name = name or f"kafka:{topic}/{partition}"
        self._topic = topic
        self._partition = partition
        self._follows = follows
        self._settings = {
            **(settings or {}),
            "bootstrap.servers": servers,
            "group.id": f"barrage-{topic}-{partition}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "log_level": 0,
        }

    def read_blocking(self, after: int | None) -> Iterator[MessageBatch]:
        """See :class:`~barrage.connector.source.SyncSource`."""
        kafka = _library()
        consumer = kafka.Consumer(self._settings)
        try:
            start = kafka.OFFSET_BEGINNING if after is None else after + 1
            if after is not None:
                self._check_there(kafka, consumer, after + 1)
            consumer.assign([kafka.TopicPartition(self._topic, self._partition, start)])
            while not self.is_stopping:
                records = consumer.consume(RECORDS_MAX, WAIT_SECONDS)
                good = [each for each in records if each.error() is None]
                if good:
                    yield self._batch(good)
                for each in records:
                    if each.error() is None:
                        continue
                    if each.error().code() == kafka.KafkaError._PARTITION_EOF:
                        if not self._follows:
                            return
                    elif not each.error().retriable():
                        raise SourceLostError(f"Kafka topic {self._topic!r}: {each.error()}")
        finally:
            consumer.close()

    def _check_there(self, kafka: Any, consumer: Any, offset: int) -> None:
        partition = kafka.TopicPartition(self._topic, self._partition)
        low, high = consumer.get_watermark_offsets(partition, timeout=START_SECONDS)
        if not low <= offset <= high:
            raise SourceLostError(
                f"Kafka topic {self._topic!r}, partition {self._partition}, has offsets from {low} "
                f"to {high}, and {offset} comes next"
            )

    def _batch(self, records: list[Any]) -> MessageBatch:
        return MessageBatch(
            ids=[each.offset() for each in records],
            payloads=[each.value() or b"" for each in records],
            keys=[each.key() or b"" for each in records],
            event_times=[max(0, each.timestamp()[1]) for each in records],
        )
